from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.errors import BrimError, DeviceError, InvalidRequest, UnknownDevice
from brim.planning.devices import catalogue, find_device, find_devices, larger_devices
from brim.planning.gpus.cards import ARCHITECTURES, CARDS, CLASSES, CatalogueCard, DeviceClass
from brim.planning.gpus.names import find_card
from brim.records.plan import Device, Source
from brim.units import GIB, MIB
from tests.unit.probes.fake_nvml import FakeGpu, FakeNvml


def test_the_catalogue() -> None:
    devices = catalogue()
    assert len({device.key for device in devices}) == len(devices) == len(CARDS) >= 60
    unified = {card.key for card in CARDS if card.kind is DeviceClass.UNIFIED}  # the CPU and its system have their part
    for device in devices:
        assert 0 <= device.hidden_bytes < device.total_bytes // (20 if device.key not in unified else 2)
        assert device.context_bytes > 200 * MIB or device.generation == "metal"


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.key)
def test_a_card_is_sold_with_about_what_its_driver_reports(card: CatalogueCard) -> None:
    assert 0.93 * card.sold_gb * 1024 <= card.reported_mib <= 1.0 * card.sold_gb * 1024 + 1024


def as_words(name: str) -> set[str]:
    """The same name as people type it."""
    bare = name.replace("NVIDIA ", "").replace("GeForce ", "").replace("Tesla ", "").replace("AMD Instinct ", "")
    spaced = {name, bare, f"NVIDIA {bare}", f"  {bare} "}
    joined = {text.replace(" ", sign) for text in spaced for sign in ("-", "_", " ", "")}
    return {form for text in joined for form in (text, text.lower(), text.upper())}


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.key)
def test_every_card_by_key_name_and_spelling(card: CatalogueCard) -> None:
    for spelling in (card.key, card.name, *card.also):
        for text in as_words(spelling):
            assert find_device(text).key == card.key, text


DRIVER_NAMES = {
    "NVIDIA H100 80GB HBM3": "h100-80gb",
    "NVIDIA H100 PCIe": "h100-pcie",
    "NVIDIA H100 NVL": "h100-nvl",
    "NVIDIA H200": "h200",
    "NVIDIA H200 NVL": "h200",
    "NVIDIA H800 PCIe": "h800",
    "NVIDIA GH200 480GB": "gh200-96gb",
    "NVIDIA A100-SXM4-80GB": "a100-80gb",
    "NVIDIA A100 80GB PCIe": "a100-80gb",
    "NVIDIA A100-SXM4-40GB": "a100-40gb",
    "NVIDIA A100-PCIE-40GB": "a100-40gb",
    "NVIDIA A800-SXM4-80GB": "a800-80gb",
    "NVIDIA A10G": "a10g",
    "NVIDIA L40S": "l40s",
    "NVIDIA B200": "b200",
    "NVIDIA B300 SXM6 AC": "b300",
    "Tesla V100-SXM2-16GB": "v100-16gb",
    "Tesla V100-SXM2-32GB": "v100-32gb",
    "Tesla V100-PCIE-32GB": "v100-32gb",
    "Tesla P100-PCIE-16GB": "p100-16gb",
    "Tesla T4": "t4",
    "NVIDIA TITAN RTX": "titan-rtx",
    "NVIDIA GeForce RTX 3090 Ti": "rtx-3090-ti",
    "NVIDIA GeForce RTX 4060 Ti": "rtx-4060-ti-16gb",
    "NVIDIA GeForce RTX 4070 Ti SUPER": "rtx-4070-ti-super",
    "NVIDIA GeForce RTX 4090 D": "rtx-4090-d",
    "NVIDIA RTX A6000": "rtx-a6000",
    "NVIDIA RTX 6000 Ada Generation": "rtx-6000-ada",
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": "rtx-pro-6000",
    "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition": "rtx-pro-6000",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "rtx-pro-6000",
    "AMD Instinct MI300X": "mi300x",
    "AMD Instinct MI300X OAM": "mi300x",
    "AMD Instinct MI325X": "mi325x",
}
SHORT_NAMES = {
    "h100": "h100-80gb",
    "h100-sxm": "h100-80gb",
    "h100sxm5": "h100-80gb",
    "H100-SXM5-80GB": "h100-80gb",
    "h100pcie": "h100-pcie",
    "h100-pcie-80gb": "h100-pcie",
    "a100": "a100-80gb",
    "a100-40g": "a100-40gb",
    "a100 40gb sxm": "a100-40gb",
    "a800": "a800-80gb",
    "gh200": "gh200-96gb",
    "v100": "v100-16gb",
    "p100": "p100-16gb",
    "4090": "rtx-4090",
    "rtx4090": "rtx-4090",
    "RTX 4090 24GB": "rtx-4090",
    "3090ti": "rtx-3090-ti",
    "rtx3090ti": "rtx-3090-ti",
    "4060ti": "rtx-4060-ti-16gb",
    "4060 Ti 8GB": "rtx-4060-ti-8gb",
    "5060-ti": "rtx-5060-ti-16gb",
    "4080super": "rtx-4080-super",
    "a6000": "rtx-a6000",
    "6000 ada": "rtx-6000-ada",
    "pro 6000": "rtx-pro-6000",
    "l40s 48gb": "l40s",
    "mi300x-192gb": "mi300x",
    "7900xtx": "rx-7900-xtx",
    "rx7900 xt": "rx-7900-xt",
    "AMD Radeon RX 9070 XT": "rx-9070-xt",
    "910b": "ascend-910b",
    "NVIDIA GeForce RTX 4090 Laptop GPU": "rtx-4090-laptop",  # 16 GB
    "5090 mobile": "rtx-5090-laptop",
    "5090d": "rtx-5090-d",
    "dgx spark": "gb10",
    "NVIDIA GH200 144G HBM3e": "gh200-144gb",
    "NVIDIA H20-3e": "h20-141gb",
    "a800-40gb": "a800-40gb",
    "pro 5000 72gb": "rtx-pro-5000-72gb",
    "radeon ai pro r9700": "r9700",
    "ryzen ai max+ 395": "strix-halo",
    "mi250x": "mi250x",
    "gaudi3": "gaudi-3",
    "arc b580": "arc-b580",
    "v6e": "tpu-v6e",
    "Jetson Orin NX": "jetson-orin-nx",
    "m4 max": "m4-max-128gb",
    "Apple M3 Ultra 512GB": "m3-ultra-512gb",
}


@pytest.mark.parametrize(("text", "key"), (DRIVER_NAMES | SHORT_NAMES).items())
def test_names_as_drivers_and_people_write_them(text: str, key: str) -> None:
    for form in (text, text.lower(), text.upper(), f" {text}  "):
        assert find_device(form).key == key


@pytest.mark.parametrize(
    "text",
    [
        "GeForce RTX 3080 Ti Laptop GPU",
        "NVIDIA A100-40C",  # a share of a card
        "Quadro RTX 6000",
        "rtx 6000",  # of three generations
        "titan",
        "h100-40gb",
        "a100-96gb",
        "4090-48gb",
    ],
)
def test_other_memory_under_a_similar_name_is_not_taken_for_the_card(text: str) -> None:
    assert find_card(text) is None
    with pytest.raises(UnknownDevice, match="not in the catalogue"):
        find_device(text)


@pytest.mark.parametrize(
    ("text", "count", "key"),
    [
        ("8xh100", 8, "h100-80gb"),
        ("8 x h100", 8, "h100-80gb"),
        ("8×H100", 8, "h100-80gb"),
        ("8X NVIDIA H100 80GB HBM3", 8, "h100-80gb"),
        ("h100:4", 4, "h100-80gb"),
        ("h100 : 4", 4, "h100-80gb"),
        ("h100x8", 8, "h100-80gb"),
        ("h100 x 8", 8, "h100-80gb"),
        ("2x4090", 2, "rtx-4090"),
        ("4090x2", 2, "rtx-4090"),
        ("2xrtx 4090", 2, "rtx-4090"),
        ("RTX 4090 x2", 2, "rtx-4090"),
        ("8xmi300x", 8, "mi300x"),
        ("mi300xx8", 8, "mi300x"),
        ("MI300X:8", 8, "mi300x"),
        ("1xl4", 1, "l4"),
        ("1024xl4", 1024, "l4"),
        ("2x8xh200", 16, "h200"),
        ("2x7900xtx", 2, "rx-7900-xtx"),
        ("7900xtx:2", 2, "rx-7900-xtx"),
        ("8xt4", 8, "t4"),
        ("2x24GiB", 2, "24GiB"),
        ("24GiB:2", 2, "24GiB"),
        ("2x24GB", 2, "rtx-4090"),
        ("rtx 4090", 1, "rtx-4090"),
        ("4090", 1, "rtx-4090"),
    ],
)
def test_counts(text: str, count: int, key: str) -> None:
    found = find_devices(text)
    assert [device.key for device in found] == [key] * count


@pytest.mark.parametrize("text", ["0xh100", "-1xh100", "1025xh100", "h100:0", "h100:-2", "h100x0", "9" * 5000 + "xl4"])
def test_counts_that_are_none(text: str) -> None:
    with pytest.raises(InvalidRequest, match="the count is not from 1 to 1024"):
        find_devices(text)


def test_a_count_twice_and_several_where_one_is_wanted() -> None:
    with pytest.raises(InvalidRequest, match="before and after"):
        find_devices("2xh100:4")
    with pytest.raises(InvalidRequest, match="'8xh100' is 8 devices, and one is wanted here; write h100"):
        find_device("8xh100")
    with pytest.raises(InvalidRequest, match="is a list"):
        find_devices("h100,h200")
    assert find_device("1xh100") == find_device("h100")


def test_sizes() -> None:
    device = find_device("24GiB")
    assert device.total_bytes == 24 * GIB
    assert device.usable_bytes < device.total_bytes
    assert find_device("37GB").total_bytes == find_device("37 gb").total_bytes == 37 * 10**9
    assert find_device("24576MiB").total_bytes == find_device("24G").total_bytes == 24 * GIB


def test_a_size_in_gb_is_a_card_sold_with_it() -> None:
    device = find_device("24GB")
    assert (device.key, device.name) == ("rtx-4090", "24 GB class (as GeForce RTX 4090)")
    assert device.usable_bytes == find_device("rtx-4090").usable_bytes
    assert find_device("24 gb") == device
    assert find_device("80GB").usable_bytes == find_device("h100").usable_bytes


@pytest.mark.parametrize("sold_gb", sorted(CLASSES))
def test_a_usual_size_is_a_card_sold_with_it(sold_gb: int) -> None:
    found = find_device(f"{sold_gb}GB")
    assert found.key == CLASSES[sold_gb]
    assert found.usable_bytes == find_device(found.key).usable_bytes
    assert found.name.startswith(f"{sold_gb} GB class (as ")


def test_another_size_is_a_size() -> None:
    """64 GB are no MI210: nobody said whose memory it is."""
    device = find_device("64GB")
    assert (device.key, device.total_bytes, device.source) == ("64GB", 64 * 10**9, Source.GIVEN)
    assert device.generation == ""


@pytest.mark.parametrize(
    ("text", "key", "mib"),
    [
        ("a100-80gb 3g.40gb", "a100-80gb-3g.40gb", 40192),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "a100-40gb-1g.5gb", 4864),
        ("h100-1g.10gb", "h100-80gb-1g.10gb", 9011),  # not in the catalogue: less than its name says
    ],
)
def test_parts_of_a_divided_gpu(text: str, key: str, mib: int) -> None:
    device = find_device(text)
    assert (device.key, device.total_bytes) == (key, mib * MIB)


def test_a_part_is_not_more_than_the_whole() -> None:
    with pytest.raises(UnknownDevice, match="more than the whole card"):
        find_device("a100-40gb-7g.80gb")


def test_apple_has_the_share_that_metal_gives() -> None:
    assert find_device("m2-24gb").usable_bytes == 16 * GIB
    assert find_device("m4-max-128gb").usable_bytes == 96 * GIB
    assert find_device("m4-max-128gb").source is Source.PUBLISHED


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.key)
def test_a_larger_device_is_of_the_same_vendor_and_no_older_and_its_own_kind_comes_first(card: CatalogueCard) -> None:
    by_key = {one.key: one for one in CARDS}
    own, found = ARCHITECTURES[card.architecture], larger_devices(find_device(card.key))
    for larger in found:
        other = ARCHITECTURES[by_key[larger.key].architecture]
        assert other.vendor is own.vendor
        assert other.year >= own.year
        assert larger.usable_bytes > find_device(card.key).usable_bytes
    alike = [by_key[larger.key].kind is card.kind for larger in found]
    assert alike == sorted(alike, reverse=True)


def test_suggestions_stay_with_the_vendor_and_the_kind_of_a_card() -> None:
    assert larger_devices(find_device("rtx-3060"))[0].key == "rtx-5070-ti"
    assert larger_devices(find_device("rtx-5090"))[0].key == "rtx-pro-5000"  # no larger one of its kind


def test_a_larger_size_is_a_size() -> None:
    assert larger_devices(find_device("64GiB"))[0].key == "80GiB"


def test_every_key_and_name_is_its_own_card() -> None:
    assert len({card.key for card in CARDS}) == len(CARDS)
    for card in CARDS:
        assert find_device(card.key).key == card.key


def test_the_h200_as_measured() -> None:
    assert find_device("h200").usable_bytes == 143156 * MIB


def test_a_budget_on_the_cpu_has_nothing_hidden() -> None:
    assert find_devices("cpu:laptop:16GiB") == (
        Device("cpu:laptop", "CPU budget laptop", 16 * GIB, 0, 0, 0, source=Source.GIVEN),
    )
    assert find_device("CPU:64GB") == Device("cpu", "CPU budget", 64 * 10**9, 0, 0, 0, source=Source.GIVEN)
    for text in ("cpu", "cpu:", "cpu:laptop", "cpu::4GiB", "cpu:a:b:4GiB", "cpu:x:0", "cpu:x:-4GiB", "cpu:x:lots"):
        with pytest.raises(InvalidRequest, match="gpu"):
            find_devices(text)


def test_unknown() -> None:
    with pytest.raises(UnknownDevice, match="did you mean h100"):
        find_device("h1000")
    with pytest.raises(UnknownDevice, match="did you mean rtx-6000-ada"):
        find_device("rtx 6000")
    with pytest.raises(UnknownDevice, match="did you mean rtx-3090"):
        find_device("3090x")
    with pytest.raises(UnknownDevice, match="did you mean mi300a, mi300x"):
        find_devices("8xmi300")
    with pytest.raises(UnknownDevice, match="brim gpus"):
        find_device("abacus")
    with pytest.raises(InvalidRequest, match="smaller than 1 GiB"):
        find_device("100MiB")
    with pytest.raises(InvalidRequest, match="not a size"):
        find_device("24 parsecs")
    with pytest.raises(InvalidRequest, match="is empty"):
        find_device("  ")


PIECES = ["8", "x", "×", ":", ",", "h100", "rtx", " ", "cpu", "24", "GB", "GiB", "-", "4090", "0", ".", "auto", "\n"]


@given(st.one_of(st.text(max_size=40), st.lists(st.sampled_from(PIECES), max_size=8).map("".join)))
def test_any_text_is_devices_or_one_line(text: str) -> None:
    try:
        found = find_devices(text)
    except BrimError as error:
        message = str(error)
        found = ()
    else:
        message = f"{len(found)} devices"
    assert len(message.splitlines()) == 1
    assert all(device.usable_bytes > 0 for device in found)


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """Two H100s, one of them in use by others, and a card the catalogue does not know."""
    fake = FakeNvml(
        [
            FakeGpu("NVIDIA H100 80GB HBM3", "GPU-1", 81559 * MIB, 551 * MIB),
            FakeGpu("NVIDIA H100 80GB HBM3", "GPU-2", 81559 * MIB, 10551 * MIB),
            FakeGpu("NVIDIA GeForce RTX 4090 Laptop GPU", "GPU-3", 16376 * MIB, 0, (8, 9)),
        ]
    )
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return fake


@pytest.mark.usefixtures("node")
def test_auto_is_every_gpu_with_what_others_hold_of_it() -> None:
    first, second, laptop = find_devices("auto")
    assert (first.key, first.name, first.source) == ("h100-80gb", "NVIDIA H100 80GB HBM3", Source.MEASURED)
    assert first.hidden_bytes == find_device("h100").hidden_bytes
    assert (first.neighbour_bytes, second.neighbour_bytes) == (0, 10000 * MIB)
    assert laptop.key == "rtx-4090-laptop"
    assert laptop.context_bytes == find_device("rtx-4090").context_bytes  # the same generation
    assert find_device("auto") == first


@pytest.mark.usefixtures("node")
def test_indices_are_one_node() -> None:
    every = find_devices("AUTO")
    assert find_devices("1") == find_devices("cuda:1") == (every[1],)
    assert find_devices("cuda") == (every[0],)
    assert find_devices("0,1") == find_devices(" 0 , 1 ") == every[:2]
    assert find_devices("2,0") == (every[2], every[0])
    assert find_device("1") == every[1]
    with pytest.raises(InvalidRequest, match="names a GPU twice"):
        find_devices("0,0")
    with pytest.raises(UnknownDevice, match=r"gpu 24 is not there: this process sees 3.*write a size like 24GiB"):
        find_devices("24")


@pytest.mark.usefixtures("node")
def test_indices_count_what_this_process_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    second = find_device("1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert find_devices("auto") == find_devices("0") == (second,)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(DeviceError, match="sees no GPU"):
        find_devices("auto")


def test_a_size_of_the_card_that_the_driver_contradicts_is_not_used(node: FakeNvml) -> None:
    node.gpus[:] = [FakeGpu("NVIDIA GeForce RTX 4060 Ti", "GPU-1", 8188 * MIB, 0, (8, 9))]
    assert find_device("auto").key == "NVIDIA GeForce RTX 4060 Ti"  # the catalogue's card of that name has 16 GB


def test_auto_without_a_driver_says_what_to_do() -> None:
    pynvml = pytest.importorskip("pynvml")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        with pytest.raises(DeviceError, match="name a GPU, or give a size"):
            find_device("auto")
    else:
        assert find_device("auto").total_bytes > GIB
