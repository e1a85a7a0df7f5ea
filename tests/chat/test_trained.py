import json
import shutil

import pytest

from firstchair.chat.renderer import Renderer
from firstchair.chat.trained import RENDERING, read_rendering, trained_renderer, write_rendering
from firstchair.core.errors import ConfigError, DataError
from firstchair.train.base_model import base_model_dir


@pytest.fixture
def trained(tmp_path):
    """The tokenizer of a model that was trained with respaced arguments."""
    path = tmp_path / "model"
    path.mkdir()
    for file in base_model_dir().iterdir():
        if file.suffix != ".safetensors":
            shutil.copyfile(file, path / file.name)
    write_rendering(Renderer.from_pretrained(path, arguments="respaced"), path)
    return path


def test_a_model_is_prompted_as_it_was_trained_unless_told(trained):
    hashes = {
        spelling: Renderer.from_pretrained(trained, arguments=spelling).template_hash
        for spelling in ("verbatim", "respaced")
    }
    assert trained_renderer(trained).template_hash == hashes["respaced"] == read_rendering(trained).template_hash
    assert trained_renderer(trained, arguments="verbatim").template_hash == hashes["verbatim"]


def test_a_model_that_says_nothing_is_prompted_verbatim():
    found = trained_renderer(base_model_dir()).template_hash
    assert found == Renderer.from_pretrained(base_model_dir()).template_hash
    assert read_rendering(base_model_dir()) is None


def test_files_that_no_longer_render_as_in_training_are_refused(trained):
    (template,) = trained.glob("*.jinja")
    template.write_text(template.read_text(encoding="utf-8") + "{# edited #}", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"trained with template .*now render as .*on purpose"):
        trained_renderer(trained)
    assert trained_renderer(trained, arguments="respaced").arguments == "respaced"


@pytest.mark.parametrize("text", ["{", "[]", json.dumps({"template_hash": "x"})])
def test_a_broken_file_is_named(trained, text):
    (trained / RENDERING).write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=r"firstchair\.json"):
        trained_renderer(trained)
