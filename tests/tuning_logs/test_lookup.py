"""Which record serves which workload on which machine."""

import dataclasses
from dataclasses import dataclass, field

import pytest

from tilegrad._base.target import Target
from tilegrad.tuning_logs import Appender, Record, Records, Verdict, distance, fits

W = {"op": "matmul", "m": 128, "n": 512, "k": 784, "layout": "NT", "dtypes": ["f32"] * 3, "epilogue": "relu"}
AVX2 = Target("x86_64", ("avx", "avx2", "fma"), threads=2, cpu="zen3")
AVX512 = Target("x86_64", ("avx", "avx2", "fma", "avx512f"), threads=2, cpu="zen4")
NEON = Target("aarch64", ("neon",), threads=2)


def trial(config, cost, workload=W, target=AVX2, status="ok", **more):
    costs = (cost,) if status == "ok" else None
    return Record("contraction/1", workload, target.record(), {"c": config}, status, costs, **more)


def found(records, workload=W, target=AVX2, accept=None):
    hit = records.lookup("contraction/1", workload, target, accept)
    return hit and (hit.config["c"], hit.source)


def test_the_fastest_successful_trial_wins():
    log = [trial(1, 3.0), trial(2, 1.0), trial(3, 0.1, status="wrong_answer"), trial(4, 2.0)]
    assert found(Records(log)) == (2, "tuned")
    assert found(Records(log), W | {"layout": "NN"}) is None
    assert Records(log).lookup("contraction/2", W, AVX2) is None


def test_several_measurements_of_a_config_are_pooled():
    log = [trial(1, 1.0), trial(2, 0.9), trial(2, 1.3), trial(2, 1.3), trial(1, 1.0)]
    assert found(Records(log)) == (1, "tuned")


def test_a_verdict_settles_what_came_before_it():
    verdict = Verdict("contraction/1", W, AVX2.record(), {"c": 1}, 1.0, 1.0, 2, "trials")
    assert found(Records([trial(2, 0.9), verdict])) == (1, "tuned")
    assert found(Records([trial(2, 0.9), verdict, trial(3, 0.8)])) == (3, "tuned")
    assert found(Records([verdict, dataclasses.replace(verdict, config={"c": 5}, cost_s=2.0)])) == (5, "tuned")


def test_features_in_use_must_be_a_subset_and_names_do_not_matter():
    log = [trial("avx2", 2.0), trial("avx512", 1.0, target=AVX512), trial("neon", 0.5, target=NEON)]
    records = Records(log)
    assert found(records, target=AVX2) == ("avx2", "tuned")
    assert found(records, target=AVX512) == ("avx512", "tuned")
    assert found(records, target=NEON) == ("neon", "tuned")
    assert found(records, target=Target("x86_64", ("sse4.2",), 2)) is None
    assert fits(AVX2.record(), dataclasses.replace(AVX2, cpu="another", l2_bytes=1, features=(*AVX2.features, "movbe")))


def test_tiles_for_other_vector_registers_must_be_accepted_like_those_of_another_shape():
    records = Records([trial("avx2", 1.0)])
    assert found(records, target=AVX512) is None
    assert found(records, target=AVX512, accept=lambda c: False) is None
    assert found(records, target=AVX512, accept=lambda c: True) == ("avx2", "nearest")


def test_an_exact_workload_with_the_nearest_thread_count():
    log = [trial(t, 1.0 / t, target=AVX2.with_threads(t)) for t in (1, 4, 64)]
    assert found(Records(log), target=AVX2.with_threads(4)) == (4, "tuned")
    assert found(Records(log), target=AVX2.with_threads(6)) == (4, "tuned")
    assert found(Records(log), target=AVX2.with_threads(100)) == (64, "tuned")


def test_user_log_before_shipped_and_exact_before_near_in_each():
    near = W | {"m": 256}
    exact_shipped = [trial("shipped", 0.1)]
    assert found(Records([trial("mine", 9.0)], exact_shipped)) == ("mine", "tuned")
    assert found(Records([], exact_shipped)) == ("shipped", "shipped")
    both = Records([trial("near", 9.0, near)], exact_shipped)
    assert found(both, accept=lambda c: True) == ("near", "nearest")
    assert found(both, accept=lambda c: False) == ("shipped", "shipped")


def test_the_nearest_accepted_shape():
    log = [trial(m, 1.0, W | {"m": m}) for m in (4096, 256, 64, 120)]
    assert found(Records(log)) is None
    assert found(Records(log), accept=lambda c: True) == (120, "nearest")
    assert found(Records(log), accept=lambda c: c["c"] > 200) == (256, "nearest")
    other_kind = [trial("x", 1.0, W | {"dtypes": ["f16"] * 3}), trial("x", 1.0, {"op": "matmul"})]
    assert found(Records(other_kind), accept=lambda c: True) is None


def test_distance():
    assert distance(W, W) == 0
    assert distance(W, W | {"m": 256, "k": 392}) == pytest.approx(2.0)
    assert distance(W, W | {"epilogue": "none"}) == 1.0
    assert distance(W, W | {"layout": "NN"}) is None
    assert distance({"s": [1, 8], "flag": True}, {"s": [1, 2], "flag": True}) == pytest.approx(2.0)
    assert distance({"s": [1, 8]}, {"s": [8]}) is None
    assert distance({"flag": True}, {"flag": False}) is None
    assert distance({"geometry": "x=1x64 pad=1:1"}, {"geometry": "x=4x64 pad=1:1"}) == pytest.approx(2.0)
    assert distance({"geometry": "x=1x64"}, {"geometry": "x=1x64x2"}) is None
    assert distance({"op": "conv2d"}, {"op": "conv3d"}) is None and distance(W, W | {"dtypes": ["f16"] * 3}) is None


@dataclass
class FakeWorkload:
    fields: dict

    def json(self):
        return self.fields


@dataclass
class FakeTemplate:
    """Legal configs 1 to 5; config c is expected to take c seconds; 3 is the default."""

    name: str = "contraction/1"
    spaces: list = field(default_factory=list)

    def space(self, workload, target):
        self.spaces.append(workload)
        return [{"c": c} for c in range(1, 6)]

    def default(self, workload, target):
        return {"c": 3}

    def estimate(self, workload, config, target):
        return float(config["c"])


@pytest.mark.parametrize(
    ("recorded", "expected"),
    [(2, (2, "nearest")), (3, (3, "nearest")), (4, (3, "default")), (9, (3, "default")), (0, (3, "default"))],
)
def test_choose_takes_near_configs_only_when_legal_and_no_worse(recorded, expected):
    records = Records([trial(recorded, 1.0, W | {"m": 256})])
    hit = records.choose(FakeTemplate(), FakeWorkload(W), AVX2)
    assert (hit.config["c"], hit.source) == expected


def test_choose_with_no_log_never_enumerates_the_space():
    template = FakeTemplate()
    assert Records.load([]).choose(template, FakeWorkload(W), AVX2).source == "default"
    assert template.spaces == []


def test_summary_counts_sources_and_names_the_untuned():
    records = Records([trial(9, 1.0)], [trial(2, 1.0, W | {"m": 7})])
    for m in (128, 7, 8, 1000):
        records.choose(FakeTemplate(), FakeWorkload(W | {"m": m, "layout": "NN" if m == 1000 else "NT"}), AVX2)
    assert records.summary() == "4 kernels: 1 tuned, 1 shipped, 1 nearest, 1 default"
    assert len(records.untuned) == 2 and '"m":8' in records.untuned[0]


def test_logs_none_means_the_users_log_then_the_shipped(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEGRAD_LOG", str(tmp_path / "mine.jsonl"))
    assert found(Records.load(None)) is None  # no user log is fine, and nothing shipped has this op's fields
    with Appender(tmp_path / "mine.jsonl") as log:
        log.append(trial("mine", 1.0))
    assert found(Records.load(None)) == ("mine", "tuned")
    assert found(Records.load([])) is None
    assert found(Records.load(tmp_path / "mine.jsonl")) == ("mine", "tuned")
