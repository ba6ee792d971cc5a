"""The encodings of the web: their names, labels and decoders (WHATWG Encoding §4.2).

Names are lower case here. Python's own codecs decode; where they differ from the standard on bytes that pages contain,
the difference is made up below. No function raises for any bytes.
"""

from __future__ import annotations

import codecs
from typing import Final

UTF_8: Final = "utf-8"
FALLBACK: Final = "windows-1252"
REPLACEMENT: Final = "replacement"
_USER_DEFINED: Final = "x-user-defined"

# name: (Python codec, labels)
_TABLE: Final[dict[str, tuple[str, str]]] = {
    "utf-8": ("utf-8", "unicode-1-1-utf-8 unicode11utf8 unicode20utf8 utf-8 utf8 x-unicode20utf8"),
    "ibm866": ("cp866", "866 cp866 csibm866 ibm866"),
    "iso-8859-2": (
        "iso8859_2",
        "csisolatin2 iso-8859-2 iso-ir-101 iso8859-2 iso88592 iso_8859-2 iso_8859-2:1987 l2 latin2",
    ),
    "iso-8859-3": (
        "iso8859_3",
        "csisolatin3 iso-8859-3 iso-ir-109 iso8859-3 iso88593 iso_8859-3 iso_8859-3:1988 l3 latin3",
    ),
    "iso-8859-4": (
        "iso8859_4",
        "csisolatin4 iso-8859-4 iso-ir-110 iso8859-4 iso88594 iso_8859-4 iso_8859-4:1988 l4 latin4",
    ),
    "iso-8859-5": (
        "iso8859_5",
        "csisolatincyrillic cyrillic iso-8859-5 iso-ir-144 iso8859-5 iso88595 iso_8859-5 iso_8859-5:1988",
    ),
    "iso-8859-6": (
        "iso8859_6",
        (
            "arabic asmo-708 csiso88596e csiso88596i csisolatinarabic ecma-114 iso-8859-6 iso-8859-6-e iso-8859-6-i "
            "iso-ir-127 iso8859-6 iso88596 iso_8859-6 iso_8859-6:1987"
        ),
    ),
    "iso-8859-7": (
        "iso8859_7",
        (
            "csisolatingreek ecma-118 elot_928 greek greek8 iso-8859-7 iso-ir-126 iso8859-7 iso88597 iso_8859-7 "
            "iso_8859-7:1987 sun_eu_greek"
        ),
    ),
    "iso-8859-8": (
        "iso8859_8",
        (
            "csiso88598e csisolatinhebrew hebrew iso-8859-8 iso-8859-8-e iso-ir-138 iso8859-8 iso88598 iso_8859-8 "
            "iso_8859-8:1988 visual"
        ),
    ),
    "iso-8859-8-i": ("iso8859_8", "csiso88598i iso-8859-8-i logical"),
    "iso-8859-10": ("iso8859_10", "csisolatin6 iso-8859-10 iso-ir-157 iso8859-10 iso885910 l6 latin6"),
    "iso-8859-13": ("iso8859_13", "iso-8859-13 iso8859-13 iso885913"),
    "iso-8859-14": ("iso8859_14", "iso-8859-14 iso8859-14 iso885914"),
    "iso-8859-15": ("iso8859_15", "csisolatin9 iso-8859-15 iso8859-15 iso885915 iso_8859-15 l9"),
    "iso-8859-16": ("iso8859_16", "iso-8859-16"),
    "koi8-r": ("koi8_r", "cskoi8r koi koi8 koi8-r koi8_r"),
    "koi8-u": ("koi8_u", "koi8-ru koi8-u"),
    "macintosh": ("mac_roman", "csmacintosh mac macintosh x-mac-roman"),
    "windows-874": ("cp874", "dos-874 iso-8859-11 iso8859-11 iso885911 tis-620 windows-874"),
    "windows-1250": ("cp1250", "cp1250 windows-1250 x-cp1250"),
    "windows-1251": ("cp1251", "cp1251 windows-1251 x-cp1251"),
    "windows-1252": (
        "cp1252",
        (
            "ansi_x3.4-1968 ascii cp1252 cp819 csisolatin1 ibm819 iso-8859-1 iso-ir-100 iso8859-1 iso88591 iso_8859-1 "
            "iso_8859-1:1987 l1 latin1 us-ascii windows-1252 x-cp1252"
        ),
    ),
    "windows-1253": ("cp1253", "cp1253 windows-1253 x-cp1253"),
    "windows-1254": (
        "cp1254",
        (
            "cp1254 csisolatin5 iso-8859-9 iso-ir-148 iso8859-9 iso88599 iso_8859-9 iso_8859-9:1989 l5 latin5 "
            "windows-1254 x-cp1254"
        ),
    ),
    "windows-1255": ("cp1255", "cp1255 windows-1255 x-cp1255"),
    "windows-1256": ("cp1256", "cp1256 windows-1256 x-cp1256"),
    "windows-1257": ("cp1257", "cp1257 windows-1257 x-cp1257"),
    "windows-1258": ("cp1258", "cp1258 windows-1258 x-cp1258"),
    "x-mac-cyrillic": ("mac_cyrillic", "x-mac-cyrillic x-mac-ukrainian"),
    # The standard decodes GBK as gb18030, which contains it.
    "gbk": ("gb18030", "chinese csgb2312 csiso58gb231280 gb2312 gb_2312 gb_2312-80 gbk iso-ir-58 x-gbk"),
    "gb18030": ("gb18030", "gb18030"),
    "big5": ("big5hkscs", "big5 big5-hkscs cn-big5 csbig5 x-x-big5"),
    "euc-jp": ("euc_jp", "cseucpkdfmtjapanese euc-jp x-euc-jp"),
    "iso-2022-jp": ("iso2022_jp_ext", "csiso2022jp iso-2022-jp"),
    "shift_jis": ("cp932", "csshiftjis ms932 ms_kanji shift-jis shift_jis sjis windows-31j x-sjis"),
    "euc-kr": (
        "cp949",
        "cseuckr csksc56011987 euc-kr iso-ir-149 korean ks_c_5601-1987 ks_c_5601-1989 ksc5601 ksc_5601 windows-949",
    ),
    # Encodings that attacks hide behind: the whole body is one replacement character.
    REPLACEMENT: ("", "csiso2022kr hz-gb-2312 iso-2022-cn iso-2022-cn-ext iso-2022-kr replacement"),
    "utf-16be": ("utf-16-be", "unicodefffe utf-16be"),
    "utf-16le": ("utf-16-le", "csunicode iso-10646-ucs-2 ucs-2 unicode unicodefeff utf-16 utf-16le"),
    _USER_DEFINED: ("latin-1", "x-user-defined"),
}

LABELS: Final = {label: name for name, (_, labels) in _TABLE.items() for label in labels.split()}
"""The 228 labels: what pages write, lower case, to the name of the encoding that it means."""

_CODECS: Final = {name: codec for name, (codec, _) in _TABLE.items()}
_BOMS: Final = {UTF_8: codecs.BOM_UTF8, "utf-16be": codecs.BOM_UTF16_BE, "utf-16le": codecs.BOM_UTF16_LE}
_NOT_ASCII_BASED: Final = frozenset({REPLACEMENT, "utf-16be", "utf-16le", "iso-2022-jp"})
_ASCII_WHITESPACE: Final = "\t\n\f\r "
_TO_PRIVATE_USE: Final = {byte: 0xF700 + byte for byte in range(0x80, 0x100)}


def lookup(label: str) -> str | None:
    """The encoding that `label` means, or None (WHATWG Encoding §4.2 "get an encoding")."""
    return LABELS.get(label.strip(_ASCII_WHITESPACE).lower())


def from_bom(body: bytes) -> str | None:
    """The encoding that a byte order mark names (WHATWG Encoding §6 "BOM sniff")."""
    for name, mark in _BOMS.items():
        if body.startswith(mark):
            return name
    return None


def is_ascii_based(name: str) -> bool:
    """Whether bytes below 0x80 always mean ASCII in the encoding `name`."""
    return name not in _NOT_ASCII_BASED


def decode(body: bytes, name: str) -> str:
    """The text of `body` without byte order mark; what cannot be decoded becomes U+FFFD, as the standard says."""
    if name == REPLACEMENT:
        return "\ufffd" if body else ""
    body = body.removeprefix(_BOMS.get(name, b""))
    if name == _USER_DEFINED:
        return body.decode("latin-1").translate(_TO_PRIVATE_USE)
    return body.decode(_CODECS[name], _ERRORS.get(name, "replace"))


def _windows_gap(error: UnicodeError) -> tuple[str, int]:
    """Bytes 0x80 to 0x9F that Windows left free are control characters to the standard; Python knows none there."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    byte = error.object[error.start]
    return chr(byte) if 0x80 <= byte < 0xA0 else "\ufffd", error.start + 1


def _japanese_vendor(error: UnicodeError) -> tuple[str, int]:
    """The NEC and IBM rows of EUC-JP (circled digits, unit signs), which Python knows in Shift_JIS only."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    pair = error.object[error.start : error.start + 2]
    if len(pair) == 2 and all(0xA1 <= byte <= 0xFE for byte in pair):
        row, cell = pair[0] - 0xA1, pair[1] - 0xA1
        lead = row // 2 + (0x81 if row < 62 else 0xC1)
        trail = cell + 0x9F if row % 2 else cell + (0x40 if cell < 63 else 0x41)
        return bytes((lead, trail)).decode("cp932", "replace"), error.start + 2
    return "\ufffd", error.start + 1


codecs.register_error("fyke.windows-gap", _windows_gap)
codecs.register_error("fyke.japanese-vendor", _japanese_vendor)

_ERRORS: Final = {name: "fyke.windows-gap" for name in _TABLE if name.startswith("windows-")} | {
    "euc-jp": "fyke.japanese-vendor"
}
