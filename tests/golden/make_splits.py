#!/usr/bin/env python3
"""Writes tests/golden/splits/splits.json: where the pre-tokenizers of published models cut texts.

It needs the package tokenizers (Hugging Face), which is asked for the pieces. The steps are those
of the models' own tokenizer.json files where such files or their expressions are published, and
what llama.cpp does otherwise. src/tokenizer/splitting/golden_splits_test.cc compares.

    python3 tests/golden/make_splits.py
"""

import itertools
import json
import pathlib

import tokenizers
from tokenizers import Tokenizer, models

OUT = pathlib.Path(__file__).parent / "splits" / "splits.json"
ENDINGS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = ENDINGS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|" + TAIL
QWEN2 = ENDINGS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|" + TAIL
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CASED = [r"[^\r\n\p{L}\p{N}]?" + UPPER + "*" + LOWER + "+", r"[^\r\n\p{L}\p{N}]?" + UPPER + "+" + LOWER + "*"]
O200K_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
O200K = "|".join(one + ENDINGS + "?" for one in CASED) + r"|\p{N}{1,3}|" + O200K_TAIL
HAN_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
HAN_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
KIMI = (r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?" + HAN_UPPER + "*" + HAN_LOWER + "+" + ENDINGS + r"?|[^\r\n\p{L}\p{N}]?"
        + HAN_UPPER + "+" + HAN_LOWER + "*" + ENDINGS + r"?|\p{N}{1,3}|" + TAIL)
CJK = "[一-龥\u3040-\u309f\u30a0-\u30ff]+"
SIGN_WORD = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|"
DEEPSEEK3 = SIGN_WORD + r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPARK = SIGN_WORD + r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+"
DEEPSEEK_WORDS = (
    r"\s?[A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293}\x{295}-"
    r"\x{2AF}\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A}\x{38C}\x{38E}-"
    r"\x{3A1}\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556}\x{10A0}-\x{10C5}\x{13A0}-"
    r"\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}"
    r"\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-"
    r"\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}"
    r"\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-"
    r"\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}"
    r"\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}\x{2145}-\x{2149}"
    r"\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}"
    r"\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-"
    r"\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}"
    r"\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}"
    r"\x{1E900}-\x{1E943}]+")
DEEPSEEK_SIGNS = "\\s?[!-/:-~！-／：-～‘-‟　-。]+"
DEEPSEEK_CJK = "[\u4e00-龥\u0800-\u4e00가-\ud7ff]+"
BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
SCRIPTS = ("[一-鿿㐀-䶿\uf900-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0e7f\u0e80-\u0eff"
           "\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+")
YOUTU_SCRIPTS = "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，\u3001-\u303f\ufe30-\ufe4f]+|[ㄅ-ㄯ]+|[一-龥\u3040-\u309f\u30a0-\u30ff]+"
YOUTU = "|".join(one + ENDINGS + "?" for one in CASED) + r"|\p{N}|" + O200K_TAIL


def split(pattern):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def digits(individual):
    return {"type": "Digits", "individual_digits": individual}


def byte_level(regex):
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": regex}


THREES, DIGIT, WORDS = split(r"\p{N}{1,3}"), digits(True), byte_level(True)
BYTES = byte_level(False)
# Names of tokenizer.ggml.pre, and the steps.
FAMILIES = [
    ("default", [split(r"[\p{P}$+<=>^~|]+"), split(GPT2), split(r"\p{N}+"), split("[0-9][0-9][0-9]")]),
    ("gpt-2 gpt2 phi-2 jina-es jina-de jina-v2-es jina-v2-de gigachat a.x-4.0 mellum modern-bert jina-v1-en "
     "jina-v2-code roberta-bpe jais exaone4 trillion granite-docling mpt olmo", [WORDS]),
    ("smollm starcoder refact codeshell exaone minerva-7b mellum2 command-r", [DIGIT, WORDS]),
    ("llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano dbrx smaug-bpe chatglm-bpe glm4 "
     "glm5", [split(LLAMA3)]),
    ("jais-2", [split(LLAMA3.replace(r"\s+(?!\S)|\s+", "|".join(
        r"\s{%d}(?!\S)" % n for n in (512, 256, 128, 64, 32, 16, 8, 4)) + r"|\s{1,2}(?!\S)|\s{1}"))]),
    ("minicpm5", [THREES, split(LLAMA3.replace("{1,3}", "+"))]),
    ("qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2", [split(QWEN2)]),
    ("qwen35", [split(QWEN2.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"\s\p{L}\p{N}", r"\s\p{L}\p{M}\p{N}"))]),
    ("ufakzeka", [split(QWEN2[len(ENDINGS) + 1:])]),
    ("laguna", [split(r"[^\n]+|[\n]+"), split(QWEN2)]),
    ("seed-coder", [split(QWEN2.replace(r"|\p{N}|", r"|\p{N}{1}|").replace(r"\p{N}]+[\r\n]*", r"\p{N}\r\n]+"))]),
    ("bailingmoe bailingmoe2 llada-moe", [split(
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+")]),
    ("exaone-moe", [split(ENDINGS + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}|"
                          r" ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+")]),
    ("gpt-4o llama4 kanana2 talkie minimax-m2 granite-embed-multi-97m", [split(O200K)]),
    ("tiny_aya cohere2moe", [split(r"\d{1,3}(?=(?:\d{3})*\b)"), split(O200K)]),
    ("tekken", [split("|".join(CASED) + r"|\p{N}|" + O200K_TAIL)]),
    ("kimi-k2", [split(KIMI)]),
    ("youtu", [split(YOUTU_SCRIPTS), split(YOUTU)]),
    ("deepseek-llm", [split(r"[\r\n]"), split(DEEPSEEK_WORDS), split(DEEPSEEK_SIGNS), split(r"\s+$"),
                      split(DEEPSEEK_CJK), DIGIT]),
    ("deepseek-coder", [split(r"[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?\p{P}+"), split(DEEPSEEK_CJK), DIGIT]),
    ("deepseek-v3 hunyuan-dense joyai-llm hy_v4", [THREES, split(CJK), split(DEEPSEEK3)]),
    ("spark2_5", [THREES, split(CJK), split(SPARK), split(r"\p{N}")]),
    ("afmoe", [split(r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"), split(SCRIPTS), split(DEEPSEEK3)]),
    ("superbpe", [split(r"\p{N}+"), split(r"(?=(\d{3})+(?!\d))")]),
    ("poro-chat bloom gpt3-finnish", [split(BLOOM)]),
    ("viking", [split(BLOOM), DIGIT]),
    ("chameleon", [split("<sentinel:[0-9]+>"), split("(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z"),
                   split(r"([\t\n]|    |  )"), DIGIT, {"type": "Punctuation", "behavior": "Isolated"}, WORDS]),
    ("falcon", [{"type": "Punctuation", "behavior": "Contiguous"}, WORDS, digits(False), split("[0-9][0-9][0-9]")]),
    ("gemma4 sarvam-moe granite-embed-multi-311m", [split(r"[^\n]+|[\n]+")]),
]

TEXTS = [
    "Hello, world! It's a test.",
    "The quick brown fox  jumps over   the lazy dog.",
    "I'm sure you're right; we've done what they'd said he'll do, don't 'em 'tis",
    "I'M SURE YOU'RE RIGHT; WE'VE DONE WHAT THEY'D SAID HE'LL DO, DON'T",
    "O'Reilly l'été d'accord 's 'S it'\u017f rock'n'roll ''quoted''",
    "one 1 12 123 1234 12345 123456 1234567 12345678 1234567890",
    "3.14159 -273.15 1e10 0x1F 1,234,567.89 50% $99.95 #1 v2.0.1 x12345y 007_008",
    "\u0661\u0662\u0663\u0664\u0665 \u0967\u0968\u0969\u096a \uff11\uff12\uff13\uff14 \u00bd \u2167 x\u00b2+y\u00b3 \u2460",
    "line one\nline two\n\nline four\n\n\n\nline eight",
    "windows\r\nlines\r\n\r\nand\rold mac\r",
    "\ttab\t\ttabs \t mixed\n\t\tindented\n    four\n        eight",
    " leading and trailing   ",
    "   ",
    "\n \n  \n",
    " ",
    "\n",
    "a",
    "",
    "CamelCaseWords and HTTPServerError, iPhone eBay McDonald XMLHttpRequest2",
    "snake_case_name kebab-case-name dotted.name path/to/file.txt C:\\dir\\file __init__",
    "user@example.com https://example.org/a/b?c=d&e=f#g",
    "def f(x):\n    return x**2 + 1  # comment\n\nif __name__ == '__main__':\n\tprint(f\"{f(3)!r}\")\n",
    "int main() { std::vector<int> v{1,2,3}; return v[0] == 1 ? 0 : -1; } // ok\r\n/* x */",
    "<div class=\"a\">&nbsp;&lt;p&gt;</div>\n<!-- note -->",
    "{\"key\": [1, 2.5, null, true], \"text\": \"a\\nb\"}",
    "SELECT * FROM t WHERE a >= 10 AND b <> 'x';",
    "\u00c0 la carte na\u00efve co\u00f6perate Stra\u00dfe \u0141\u00f3d\u017a \u0130stanbul \u0131\u015f\u0131k",
    "e\u0301 a\u0308 o\u0302\u0323 \u0915\u093c n\u0303o \u0301 alone",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440! \u041a\u0430\u043a \u0434\u0435\u043b\u0430? \u0401\u041b\u041a\u0410",
    "\u0393\u03b5\u03b9\u03ac \u03c3\u03bf\u03c5 \u03ba\u03cc\u03c3\u03bc\u03b5, \u1f04\u03bd\u03b8\u03c1\u03c9\u03c0\u03bf\u03c2",
    "\u4f60\u597d\uff0c\u4e16\u754c\uff01\u4eca\u5929\u662f2024\u5e745\u67081\u65e5\u3002 \u4e2d\u6587 mixed\u6df7\u5408text",
    "\u3053\u3093\u306b\u3061\u306f\u4e16\u754c\u3001\u30ab\u30bf\u30ab\u30ca\u3068\u6f22\u5b57\u3005\u3007\u3002\uff8a\uff9d\uff76\uff78",
    "\uc548\ub155\ud558\uc138\uc694 \uc138\uacc4! \u3131\u3134\u3137 \ud55c\uad6d\uc5b4\ub97c",
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645\u060c \u0643\u064a\u0641\u064e \u062d\u0627\u0644\u0643\u061f \u06cc\u06a9 \u06f1\u06f2\u06f3\u06d4",
    "\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd, \u05e9\u05b8\u05c1\u05dc\u05d5\u05b9\u05dd \u05e6\u05d4\"\u05dc",
    "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e\u0964 \u0915\u0949\u092b\u093c\u0940 \u0995\u09c7\u09ae\u09a8 \u0986\u099b\u09cb",
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e0a\u0e32\u0e27\u0e42\u0e25\u0e01 \u0e40\u0e01\u0e48\u0e07 \u0eaa\u0eb0\u0e9a\u0eb2\u0e8d \u1019\u103c\u1014\u103a\u1019\u102c \u1781\u17d2\u1798\u17c2\u179a",
    "\u0ba4\u0bae\u0bbf\u0bb4\u0bcd \u0c24\u0c46\u0c32\u0c41\u0c17\u0c41 \u10d2\u10d0\u10db\u10d0\u10e0\u10ef\u10dd\u10d1\u10d0 \u0540\u0561\u0575\u0561\u057d\u057f\u0561\u0576 \u12a0\u121b\u122d\u129b",
    "\U0001f600\U0001f603 smile\U0001f44d\U0001f3fd \U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f1e9\U0001f1ea \u2764\ufe0f \U0001fae8!",
    "nbsp\u00a0here\u00a0\u00a0two \u3000ideographic\u3000space \u2003em\u2009thin\u202fnarrow\u1680ogham",
    "zero\u200bwidth\u200cjoin\u200der \ufeffbom soft\u00adhyphen \u2028line\u2029para\u0085next",
    "  \u180eMongolian\u180e \u180e\u180e \u1828\u1820\u1833\u1824",
    "control\x01\x02\x1b[0m\x7f\x0b\x0cvt",
    "\u201cquotes\u201d \u2018single\u2019 \u00abguillemets\u00bb \u2014dash\u2013 \u2026dots\u2026 \u00bfqu\u00e9? \u00a1s\u00ed!",
    "\u221a2 \u2248 1.414 \u2260 \u222b\u2202x \u2211 \u00b1 \u20ac5 \u00a310 \u00a520 \u20bf \u2122 \u00a9 \u2192 \u2713",
    "!!! ??? ... --- *** ___ ~~~ ``` ,,, ;;; ()[]{}<>  !? .\n.\n",
    "a.b,c;d:e!f?g-h_i(j)k[l]m{n}o'p\"q/r\\s|t~u`v@w#x$y%z^&*+=",
    "mixed \u0430bc \u03b1bc \u4e2dabc123\u4e2d\u6587abc 1\u4e2d2\u6587 \u4e2d 1 A\u4e2d",
    "ABCdefGHIjkl \u01c5\u01c8 \u02b0\u02b7 \u00aa\u00ba A\u0301B\u0301c \u0410\u0411\u0432 aBcDe",
    "word/ path/\n/ //\n\n/x\r\n/",
    "x\n  y\n   \n z \r\n  \t\r\n w",
    "1234\u4e2d5678 a1234 1234a 12345678901 1,2345 \u0661\u0662\u0663\u0664a 1234_ 1234' 1\u00b2345",
    "<sentinel:12> IMGIMGABCDZ IMGIMGZ <|endoftext|>",
    "\U00020000\U0002a6d6 \u2e80\u2f00 \u3400\u4db5 \ufa0e\uf900 \u3105\u3106 \u31a0",
    "\U00010400\U00010428 \U0001d400\U0001d41a \U0001e900\U0001e922 \U000118a0",
    "\ufffd \ue000 \u0378 \U000e0041 \ufdd0",
]
# One piece of text, many times over.
RUNS = ["a", "A", "\u00e9", "\u4e2d", " ", "\n", "7", "-", "a ", "\u0301", " \n"]
TIMES = 3000


# Constructs of expressions, as Oniguruma reads them: what a Split with each cuts.
EXPRESSIONS = [
    (r"\p{N}{1,3}+", "1234567 12"), (r"a{2}+", "aaaaa"), (r"a{2}?", "aaaaa"), (r"a{,2}", "aaaaa"), (r"a++b", "aab"),
    (r"[a-c&&[^b]]+", "abcab"), (r"[^a-z&&[^m-p]]", "an0"), (r"[a[bc]]+", "abcd"), (r"[^a[^b]]", "abc"),
    (r"[[:alpha:]]+", "ab1\u00e9"), (r"[[:punct:]]+", "a$.+"), (r"[[:^digit:]]", "a1"), (r"[]a]+", "]a"),
    (r"[\w-]+", "a-b c"), (r"[\S]+", "a b"), (r"[^\S]", "a b"), (r"[^\s\S]", "a b"), (r"[\D1]+", "1a2"),
    (r"^a", "a\na"), (r"a$", "a\na\n"), (r"\s+$", "a  \n  b \n "), (r"(?m:a.b)", "a\nb"), (r"a.b", "a\nb a\rb"),
    (r"\h+", "xabg"), (r"\R", "a\r\nb"), (r"\X", "e\u0301a"), (r"\v", "a\x0bb"), (r"\w+", "ab_1\u00e9\u00b2 \u2160"),
    (r"\bfoo\b", "foo foo\u00b2 foox"), (r"\Boo", "foo oo"), (r"\d+", "1\u0663\u00b2"), (r"\s", "a\u180e \u0085\u3000"),
    (r"\p{Letter}+", "ab1"), (r"\p{punctuation}", "a."), (r"\p{^L}", "a1"), (r"\P{L}", "a1"), (r"[\p{^Lu}]+", "aBc"),
    (r"\p{Han}+", "\u6f22\u30fc\u3005a"), (r"\p{Hiragana}+", "\u3042\u30a2\u30fc"), (r"\p{Alphabetic}+", "a1\u24d0"),
    (r"\p{S}+", "\U0001fae8+a"), (r"\u00e9", "a\u00e9"), (r"\x{e9}", "a\u00e9"), (r"\x41", "A"), (r"(?i:'s)", "'S '\u017f"),
    (r"(?<=ab|c)d", "abdcd"), (r"(?<!a)b", "ab b"), (r"(?>a+)a", "aaa"), (r"(?<name>a)b", "ab"), (r"a(?#note)b", "ab"),
    (r"x*", "axxb"), (r"(?=(\d{3})+(?!\d))", "1234567 12 123"), (r"(?=[A-Z])", "aBcD"), (r"\{a}{1}", "{a}"), (r"a{b", "a{b"),
    (r"\/\-\_", "/-_"), (r"a|", "ab"), (r"(a|ab)(c|bcd)?", "abcd"),
]
# Other steps and sections, as strings of pieces and of texts.
METASPACE = {"type": "Metaspace", "replacement": "\u2581", "split": True}
BEHAVIORS = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
STEPS = (
    [{"type": "Whitespace"}, {"type": "WhitespaceSplit"}, {"type": "BertPreTokenizer"}, digits(True), digits(False),
     {"type": "CharDelimiterSplit", "delimiter": "a"}, {"type": "CharDelimiterSplit", "delimiter": "\u00e9"}]
    + [{"type": "Punctuation", "behavior": behavior} for behavior in BEHAVIORS]
    + [dict(METASPACE, prepend_scheme=scheme) for scheme in ("always", "first", "never")]
    + [dict(METASPACE, prepend_scheme="always", split=False)]
    + [{"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}
       for pattern in ({"String": " "}, {"Regex": r"\p{N}|,|x*"}) for behavior in BEHAVIORS for invert in (False, True)]
    + [{"type": "Sequence", "pretokenizers": [
        {"type": "WhitespaceSplit"}, {"type": "Sequence", "pretokenizers": [digits(True), {"type": "Punctuation"}]}]}])
STEP_TEXTS = ["", " ", "a", " two  words, 12 times! ", "(a-b)...c", "caf\u00e9\u3000x\u200dy\u00a0\u00b2 \u20ac5", "aa\na\r\n\ta", "x1xx,2,,3x"]
NORMALIZERS = [
    {"type": "NFC"}, {"type": "NFD"}, {"type": "NFKC"}, {"type": "NFKD"}, {"type": "Lowercase"}, {"type": "StripAccents"}, {"type": "Nmt"},
    {"type": "Strip", "strip_left": True, "strip_right": True}, {"type": "Strip", "strip_left": False, "strip_right": True},
    {"type": "Strip", "strip_left": True, "strip_right": False}, {"type": "Prepend", "prepend": "\u2581"},
    {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
    {"type": "Replace", "pattern": {"Regex": r"\s{2,}|[\n\r\t]"}, "content": " "},
    {"type": "Replace", "pattern": {"Regex": "x*"}, "content": "-"},
    {"type": "Sequence", "normalizers": [{"type": "NFD"}, {"type": "StripAccents"}, {"type": "Lowercase"}, {"type": "Sequence", "normalizers": []}]},
]
NORMALIZED_TEXTS = [
    "", " ", "Caf\u00e9 Cafe\u0301 \ufb01 \u2126 \uff21", "  \t\u3000MiXed \u0130\u00df\u1e9e \u03a3\u03a3 \u01c5 \u212a  \n", "x1xx,2,,3x",
    "a\x01b\x0bc\x7fd\u200be\ufefff\u2581g\u2028h\x85i\tj", "\u0928\u093f \u0303\u20dd", "\ud55c \u1112\u1161\u11ab",
]


# BPE with affixes, and texts.
AFFIX_WORDS = ["l o", "lo w", "e r</w>", "lo w</w>", "n e", "ne w", "i d", "w i", "wi d", "e s", "es t</w>", "d e"]
AFFIX_TEXTS = ["low lower newest widest", "l", "", "low", "xlow lowx \u00e9 low", "x\u00e9 \u00e9 lowlow", "new\u00e9est"]


def affix_model(letters, unk, **settings):
    """Merges of letters with what the settings add to them."""
    prefix, suffix = settings.get("continuing_subword_prefix") or "", settings.get("end_of_word_suffix") or ""
    vocab = {unk: 0}
    for letter in letters:
        for text in (letter, prefix + letter, letter + suffix, prefix + letter + suffix):
            vocab.setdefault(text, len(vocab))
    merges = []
    for left, right in (pair.replace("</w>", suffix).split() for pair in AFFIX_WORDS):
        for first, second in ((left, prefix + right), (prefix + left, prefix + right)):
            merged = first + second[len(prefix):]
            if first in vocab and second in vocab and [first, second] not in merges:
                merges.append([first, second])
                vocab.setdefault(merged, len(vocab))
    return {"type": "BPE", "vocab": vocab, "merges": merges, "unk_token": unk, "dropout": None, "fuse_unk": False,
            "byte_fallback": False, "ignore_merges": False, "continuing_subword_prefix": None,
            "end_of_word_suffix": None} | settings


AFFIXES = [
    {"model": affix_model("lowernidst", "<unk>", end_of_word_suffix="</w>"), "pre_tokenizer": {"type": "WhitespaceSplit"},
     "decoder": {"type": "BPEDecoder", "suffix": "</w>"}},
    {"model": affix_model("lowernidst", "<unk>", continuing_subword_prefix="##"), "pre_tokenizer": {"type": "WhitespaceSplit"}},
    {"model": affix_model("lowernidst", "<unk>", continuing_subword_prefix="##", end_of_word_suffix="</w>", fuse_unk=True),
     "pre_tokenizer": {"type": "WhitespaceSplit"}},
    {"model": affix_model("lowernidst\u0120", "<unk>", end_of_word_suffix="</w>", ignore_merges=True),
     "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}},
]


def affix_case(sections):
    tokenizer = whole(**sections)
    ids = [tokenizer.encode(text).ids for text in AFFIX_TEXTS]
    decoded = [tokenizer.decode(one) for one in ids] if "decoder" in sections else None
    return {"tokenizer": sections, "ids": ids, "decoded": decoded}


def whole(**sections):
    return Tokenizer.from_str(json.dumps(
        {"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": None,
         "post_processor": None, "decoder": None,
         "model": json.loads(Tokenizer(models.BPE()).to_str())["model"]} | sections))


def pieces(step, text):
    return [piece for piece, _ in whole(pre_tokenizer=step).pre_tokenizer.pre_tokenize_str(text)]


def lengths(steps, text):
    """How many bytes the pieces have: each is a letter of the alphabet of bytes."""
    return [len(piece) for piece in pieces({"type": "Sequence", "pretokenizers": steps}, text)]


def runs_of(values):
    return [[value, len(list(group))] for value, group in itertools.groupby(values)]


def row(value):
    """Lists of objects have a line for each."""
    if not isinstance(value, list) or not isinstance(value[0], (dict, list)):
        return json.dumps(value, separators=(",", ":"))
    return "[\n" + ",\n".join(json.dumps(one, separators=(",", ":")) for one in value) + "]"


def main():
    splits = []
    for names, steps in FAMILIES:
        if all(step["type"] != "ByteLevel" for step in steps):
            steps = steps + [BYTES]
        splits.append({"names": names.split(),
                       "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
                       "pieces": [lengths(steps, text) for text in TEXTS],
                       "runs": [runs_of(lengths(steps, run * TIMES)) for run in RUNS]})
    made = {
        "tokenizers": tokenizers.__version__, "texts": TEXTS, "runs": RUNS, "times": TIMES, "splits": splits,
        "expressions": [[pattern, text, pieces(split(pattern), text)] for pattern, text in EXPRESSIONS],
        "step_texts": STEP_TEXTS,
        "steps": [{"pre_tokenizer": step, "pieces": [pieces(step, text) for text in STEP_TEXTS]} for step in STEPS],
        "normalized_texts": NORMALIZED_TEXTS,
        "normalizers": [{"normalizer": one, "texts": [whole(normalizer=one).normalizer.normalize_str(text)
                                                     for text in NORMALIZED_TEXTS]} for one in NORMALIZERS],
        "affix_texts": AFFIX_TEXTS,
        "affixes": [affix_case(sections) for sections in AFFIXES],
    }
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text("{" + ",\n".join(json.dumps(key) + ": " + row(value) for key, value in made.items()) + "}\n")


if __name__ == "__main__":
    main()
