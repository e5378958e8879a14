"""What is installed, against what belongs together: metadata only."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from diurnal.errors import EXIT_FAULT, StackError
from diurnal.stack import FBGEMM, FLOORS, TORCH, TORCHREC, check_stack, library_versions, load_operators


def faults_of(folder: str) -> dict[str, tuple[str, str, str]]:
    with pytest.raises(StackError) as caught:
        check_stack([folder])
    assert caught.value.exit_code == EXIT_FAULT
    return {fault.where: (fault.found, fault.rule, fault.fix) for fault in caught.value.faults}


def test_right_set_passes_and_names_its_versions(install):
    versions = check_stack([install()])
    assert versions["torch"] == TORCH
    assert versions["fbgemm-gpu-cpu"] == FBGEMM
    assert versions["python"].startswith("3.")


@pytest.mark.parametrize("local", ["+cpu", "+cu130"])
def test_builds_of_the_same_release_pass(install, local):
    check_stack([install(torch=TORCH + local)])


def test_newer_libraries_pass_their_floor(install):
    check_stack([install(ray="2.100.1", pyarrow="26", mlflow="4.0.0rc1")])


def test_wrong_torch_names_both_versions_and_the_command(install):
    """meta-pytorch/torchrec#551"""
    found, rule, fix = faults_of(install(torch="2.12.0"))["torch"]
    assert found == "2.12.0"
    assert rule.startswith(TORCH)
    assert fix == f"pip install torch=={TORCH} fbgemm-gpu-cpu=={FBGEMM} && pip install --no-deps torchrec=={TORCHREC}"


def test_every_fault_comes_at_once(install):
    faults = faults_of(install(torch=None, torchrec="1.7.0", fbgemm_gpu_cpu=None, ray="2.9.3", pyarrow=None))
    assert {where: found for where, (found, _, _) in faults.items()} == {
        "torch": "not installed",
        "torchrec": "1.7.0",
        "fbgemm-gpu-cpu": "not installed",
        "ray": "2.9.3",
        "pyarrow": "not installed",
    }


def test_versions_compare_as_numbers(install):
    _, rule, fix = faults_of(install(ray="2.7.0"))["ray"]
    assert rule == f"{FLOORS['ray']} or newer"
    assert fix == f'pip install "ray>={FLOORS["ray"]}"'


def test_gpu_set_passes(install):
    check_stack([install(fbgemm_gpu_cpu=None, fbgemm_gpu=FBGEMM, torch=f"{TORCH}+cu130")])


def test_gpu_set_is_told_its_own_command(install):
    _, _, fix = faults_of(install(fbgemm_gpu_cpu=None, fbgemm_gpu="1.7.0"))["fbgemm-gpu"]
    assert f"fbgemm-gpu=={FBGEMM}" in fix


def test_cuda_fbgemm_beside_cpu_torch_is_refused(install):
    """meta-pytorch/torchrec#770"""
    found, _, fix = faults_of(install(fbgemm_gpu_cpu=None, fbgemm_gpu=FBGEMM, torch=f"{TORCH}+cpu"))["fbgemm-gpu"]
    assert found == f"torch {TORCH}+cpu"
    assert f"fbgemm-gpu-cpu=={FBGEMM}" in fix


def test_both_fbgemm_packages_are_refused(install):
    """meta-pytorch/torchrec#224: both write the same folder."""
    found, _, fix = faults_of(install(fbgemm_gpu=FBGEMM))["fbgemm"]
    assert found == f"both fbgemm-gpu-cpu {FBGEMM} and fbgemm-gpu {FBGEMM}"
    assert fix.startswith("pip uninstall -y fbgemm-gpu-cpu fbgemm-gpu && pip install ")


@pytest.mark.parametrize("damage", ["gone", "replaced"])
def test_damaged_fbgemm_folder_is_noticed(install, damage):
    site = Path(install())
    (site / "fbgemm_gpu").mkdir()
    library = site / "fbgemm_gpu" / "fbgemm_gpu_py.so"
    library.write_bytes(b"12345")
    record = site / f"fbgemm_gpu_cpu-{FBGEMM}.dist-info" / "RECORD"
    record.write_text("fbgemm_gpu/fbgemm_gpu_py.so,sha256=0,5\n")
    check_stack([str(site)])
    library.unlink() if damage == "gone" else library.write_bytes(b"1234567")
    found, _, fix = faults_of(str(site))["fbgemm-gpu-cpu"]
    assert found.startswith("1 of its files gone or replaced, fbgemm_gpu/fbgemm_gpu_py.so")
    assert fix == f"pip install --force-reinstall --no-deps fbgemm-gpu-cpu=={FBGEMM}"


def test_nothing_installed_is_no_crash(tmp_path):
    assert library_versions([str(tmp_path)]).keys() == {"python"}
    assert "torch" in faults_of(str(tmp_path))


def test_installed_libraries_load_and_leave_the_root_logger_alone():
    before = list(logging.root.handlers), logging.root.level, logging.root.manager.disable
    load_operators()
    assert (list(logging.root.handlers), logging.root.level, logging.root.manager.disable) == before
