"""PyTorch is optional: what needs it says so in one sentence, the rest of the room does without."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["grpo", "ewc", "regularizers", "schedules"])
def test_without_pytorch_one_sentence_says_how_to_get_it(module: str) -> None:
    code = f"""
import sys
sys.modules["torch"] = None
import relive, relive.train
try:
    import relive.train.{module}
except relive.ReliveError as error:
    assert isinstance(error, ImportError)
    print(error)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'relive[train]'" in result.stdout
    assert "https://pytorch.org/get-started/locally" in result.stdout
    assert len(result.stdout.splitlines()) == 1


def test_what_needs_no_tensors_works_without_pytorch() -> None:
    names = "agent_types, forgetting, gate, paired, policies"
    code = f"import sys; sys.modules['torch'] = None; from relive.train import {names}"
    subprocess.run([sys.executable, "-c", code], check=True)
