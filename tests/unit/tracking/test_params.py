from __future__ import annotations

from diurnal.tracking.params import MAX_VALUE_CHARS, as_params, config_params, without_passwords


def test_a_configuration_becomes_short_flat_values(make_config) -> None:
    params = config_params(make_config())
    assert params["optim.sparse.lr"] == "0.05"
    assert params["model.over"] == "[64,32]"
    assert params["workers.address"] == ""
    assert params["dataset.tables.user"] == '{"rows":100,"dim":4,"pooling":"sum"}'
    assert '"many":true' in params["dataset.sparse.genres"]
    assert all(isinstance(value, str) for value in params.values())


def test_hyper_parameters_are_joined_with_dots() -> None:
    used = {"optimizer": {"sparse": {"lr": 0.05, "eps": 1e-8}, "dense": {"kind": "adam", "betas": (0.9, 0.999)}}}
    assert as_params(used) == {
        "optimizer.sparse.lr": "0.05",
        "optimizer.sparse.eps": "1e-08",
        "optimizer.dense.kind": "adam",
        "optimizer.dense.betas": "[0.9,0.999]",
    }


def test_a_long_value_is_cut_at_the_limit_of_the_store() -> None:
    value = as_params({"list": list(range(10_000))})["list"]
    assert len(value) == MAX_VALUE_CHARS
    assert value.endswith("...")


def test_a_password_stays_here(make_config) -> None:
    uri = "postgresql://diurnal:s3cret@db:5432/mlflow"
    assert config_params(make_config(uri=uri))["tracking.uri"] == "postgresql://diurnal:***@db:5432/mlflow"
    assert without_passwords(f'"{uri}" and http://:token@h/') == (
        '"postgresql://diurnal:***@db:5432/mlflow" and http://:***@h/'
    )
    assert without_passwords("http://host:5000/a@b and s3://bucket/a:b") == "http://host:5000/a@b and s3://bucket/a:b"
