"""Plain English words and name parts for the generic corpus. Values are drawn so widely that none can be learned."""

NOUNS = """account address agenda agreement airport album answer apple apartment archive area article artist audit
autumn backup badge bag bakery balance band bank banner basket battery beach bed bench bicycle bike bill bird board
boat book booking bottle bowl box brand bread bridge brief brochure budget building bus business cabin cake calendar
camera camp candle captain car card carpet cart castle cat catalog ceiling chair chapter chart check chef church
circle city class clause client climate clock cloud club coast coat code coffee collection college color column
company computer concert conference contact contract copy corner cost country course court cover crew crop cup
customer cycle dance data database day deadline deal deck delivery demo desk detail device diagram diary dinner
director discount dish display doctor document dog door draft dragon drawing dress driver earth edition editor email
engine entry envelope error essay event exam example exhibit expense export factory family farm fashion feature fee
feedback fence festival field figure file film finance finding fire fish flag flight floor flower folder food forest
forecast form fox frame friend fruit fund furniture gallery game garage garden gate gift glass goal gold grant graph
grass group guest guide guitar hall handbook harbor hat headline health hill history hockey holiday home horse
hospital hotel hour house ice idea image income index industry insurance interview inventory invoice island issue item
jacket jam job journal journey juice jungle kitchen kite label ladder lake lamp laptop launch lawn lawyer leaf lease
lecture leader ledger lemon lesson letter level library license light lighthouse line lion list loan lobby log logo
lunch machine magazine mail manager manual map marble margin market match material meadow meal measure meeting member
memo menu message meter milk mill mirror mission model moment money monkey month moon morning motor mountain mouse
movie museum music name network news newsletter night note notebook notice number nurse ocean offer office oil opera
orange orchard order outline oven owl owner package page paint painting palace panel paper parcel park part partner
party passport path patient payment peach pencil people permit person phone photo piano picture pilot pipe pizza plan
planet plant plate platform player plaza poem policy pond pool port portrait poster pottery practice presentation
price print printer prize product profile profit program project proposal puzzle quarter question quiz quota rabbit
race radio rain ranch rate receipt recipe record refund region release rent repair report request research reserve
resort response restaurant result resume review reward ribbon rice ring risk river road robot rocket role roof room
rope rose route rule sale salad sample sand sandwich satellite scale scarf schedule school science score screen script
sculpture sea season seat section seed server service session shade sheet shelf shell ship shirt shoe shop signal
silver sister site sketch skill slide snow soap song sound soup space speaker sport spring square stadium staff stage
stair stamp star station statue status stone storage store storm story strategy street studio style subject summary
summer sun supplier supply support survey sweater table tailor target task tax taxi tea teacher team template tennis
tent terms test text theater theme thread ticket tiger time title tomato tool topic tower town toy track trade traffic
trail train training travel treaty tree trend trip truck tunnel turtle umbrella uniform unit update vacation valley
value van vase vegetable vendor venue version video view village vineyard violin visit visitor voice volume wallet
wall warehouse watch water wave weather website wedding week whale wheel wind window wine winter wolf wood word work
workshop world writer yard year zebra zone""".split()

ADJECTIVES = """active amber annual austere basic big black blue bold brave brief bright brown busy calm central clean
clear clever cold common copper cozy crimson daily dark deep dry dusty early easy electric elegant empty fair fast final
fine first flat foggy free fresh full funny general gentle giant glossy golden good grand gray green happy hard heavy
hidden high hollow hot huge icy initial internal large last late light little local long lost loud low lucky main major
marble minor misty modern monthly narrow neat new next noisy northern old open orange pale plain polite proud public
purple quarterly quick quiet rapid rare raw red regional round royal rustic sad safe second secret sharp short shy
silent silver simple slow small smooth soft southern special spring square steep strong sunny sweet tall tender thin
third tiny urgent vast vivid warm weekly western wet white wide wild wise wooden yellow young""".split()

VERBS = """add adopt answer approve arrange ask attach bake book borrow bring build buy call cancel carry check clean
close collect compare confirm cook copy count cut deliver design discuss draft draw drop email feed file fill find finish
fix fold follow gather give greet help hire host inspect invite join keep lead learn lend light load lock mail make meet
mend move note open order organise pack paint pay pick plan plant polish post prepare present print prune publish pull
push read record renew rent repair replace reply report reserve return review revise run save schedule sell send serve
set share ship show sign sketch sort start stop store study submit sweep switch take talk teach test thank tidy translate
trim try turn update upload visit walk wash watch water weigh wrap write""".split()

PREPOSITIONS = "in on near under over behind beside with without above across for from about after before".split()

FIRST = """Ada Adam Agnes Alan Albert Alice Amir Amy Ana Andre Anita Anna Anton Arjun Astrid Aya Ben Bianca Boris Bruno
Carla Carlos Chen Chloe Clara Colin Dana Daniel Daria David Deniz Diego Dina Dora Edgar Elena Elias Elif Ella Emil Emma
Eric Erika Esther Eva Fatima Felix Finn Fiona Flora Frank Freya Gabriel Gina Giulia Grace Greta Hana Hannah Hasan Heidi
Helen Henry Hugo Ibrahim Ida Igor Ines Ingrid Irene Isaac Ivan Ivy Jack Jana Jasmin Javier Jin Joan Jonas Jorge Julia
Kai Karim Karin Kenji Kim Kira Klaus Lara Lars Laura Lea Leila Leo Lin Lisa Liu Lucas Lucia Luis Maja Malik Marco Maria
Marta Martin Mateo Maya Mei Mia Milan Mina Mira Mohamed Nadia Nina Noah Nora Olga Oliver Omar Oscar Pablo Pascal Paul
Petra Philip Pia Priya Rafael Rahul Rania Raul Rita Robin Rosa Ruth Samir Sara Sergei Silvia Simon Sofia Stefan Sven
Tara Tariq Teo Theo Thomas Tina Tomas Uma Ursula Valentin Vera Victor Vikram Wanda Wei Xenia Yara Yusuf Zoe""".split()

SYLLABLES = """ba be bi bo bra bri bu ca ce cha cho co cra da de di do dra du el en fa fe fi flo fo ga ge gi glo go gra
ha he hi ho il in ja je jo ju ka ke ki ko kra la le li lo lu ma me mi mo mu na ne ni no nu or pa pe pi po pra qua ra re
ri ro ru sa se sha shi so sta sto su ta te ti to tra tu ul va ve vi vo wa we wi xa ya yo za ze zi zo""".split()

ENDINGS = "n r s t l x m nd rk sk ss ck lt rn ng th ll y".split()

EXTENSIONS = "txt md csv pdf docx xlsx pptx png jpg mp4 mp3 json yaml html py log zip".split()

DOMAINS = "com org net io dev info co eu".split()
