#include "evaluation/tasks/prose.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <span>
#include <string_view>

#include "evaluation/tasks/words.h"

namespace kvlathe {
namespace {

using Words = std::span<const std::string_view>;

constexpr std::string_view kNames[] = {
    "anna",  "tom",    "maria", "peter", "lucy",  "henry",  "clara", "oliver", "emma",  "walter",
    "sarah", "jacob",  "helen", "oscar", "alice", "frank",  "nora",  "george", "julia", "simon",
    "grace", "victor", "ruth",  "edgar", "daisy", "martin", "flora", "arthur", "molly", "felix"};
constexpr std::string_view kPeople[] = {
    "farmer",    "baker",     "teacher",   "doctor",     "sailor",   "miller",  "painter",
    "shepherd",  "carpenter", "tailor",    "hunter",     "gardener", "singer",  "soldier",
    "merchant",  "fisherman", "student",   "nurse",      "driver",   "builder", "writer",
    "judge",     "captain",   "cook",      "guard",      "weaver",   "potter",  "traveller",
    "neighbour", "postman",   "librarian", "blacksmith", "dancer",   "clerk",   "mayor",
    "widow",     "stranger",  "butcher",   "musician",   "engineer"};
constexpr std::string_view kTraits[] = {
    "old",      "young",  "clever", "quiet",   "tired",    "cheerful", "careful", "patient",
    "honest",   "hungry", "brave",  "curious", "friendly", "nervous",  "proud",   "gentle",
    "stubborn", "polite", "lonely", "busy",    "wise",     "happy",    "angry",   "kind"};
constexpr std::string_view kQualities[] = {
    "old",    "new",   "heavy",  "broken", "wooden", "red",     "blue",  "green",
    "small",  "large", "dusty",  "rusty",  "pretty", "strange", "cheap", "useful",
    "simple", "round", "narrow", "bright", "dirty",  "clean",   "empty", "plain",
    "long",   "short", "yellow", "white",  "black",  "soft"};
constexpr std::string_view kThings[] = {
    "basket", "wagon",    "ladder",  "table",  "chair",  "lamp",    "rope",   "coat",
    "hammer", "kettle",   "letter",  "book",   "bucket", "blanket", "fence",  "boat",
    "gate",   "clock",    "piano",   "bottle", "carpet", "picture", "barrel", "shovel",
    "mirror", "hat",      "drum",    "saddle", "window", "wheel",   "plough", "bench",
    "candle", "umbrella", "bicycle", "cradle", "violin", "tent",    "stove",  "curtain"};
constexpr std::string_view kDeeds[] = {
    "carried", "painted",  "repaired", "bought",   "sold",    "found",   "lost",     "cleaned",
    "moved",   "borrowed", "hid",      "dropped",  "lifted",  "admired", "measured", "wrapped",
    "kept",    "forgot",   "ordered",  "showed",   "praised", "pushed",  "opened",   "watched",
    "broke",   "fetched",  "washed",   "returned", "noticed", "wanted"};
constexpr std::string_view kMoves[] = {"walked", "hurried",   "rode",     "went",
                                       "ran",    "travelled", "returned", "drove",
                                       "came",   "climbed",   "wandered", "marched"};
constexpr std::string_view kFood[] = {
    "bread",  "soup",     "cheese",  "fish",     "rice",     "apples", "potatoes", "pancakes",
    "cake",   "beans",    "noodles", "eggs",     "cabbage",  "honey",  "plums",    "mushrooms",
    "onions", "porridge", "carrots", "sausages", "cherries", "butter", "nuts",     "pears"};
constexpr std::string_view kWeather[] = {"cold",   "warm",   "windy",  "rainy", "foggy",
                                         "sunny",  "stormy", "cloudy", "hot",   "mild",
                                         "frosty", "dry",    "damp",   "snowy"};
constexpr std::string_view kTimes[] = {
    "in the morning",   "after lunch",   "before sunset",     "at noon",
    "in the evening",   "on market day", "on the second day", "last winter",
    "during the storm", "all day",       "after dinner",      "in early spring",
    "every summer",     "at midnight",   "on the first day",  "before the rain",
    "in the afternoon", "last year",     "after the harvest", "on the last day"};
constexpr std::string_view kNoises[] = {
    "slept",        "waited",   "rested",      "played",          "drank some water", "hid",
    "made a noise", "ran away", "stood still", "looked for food", "sat down",         "shook"};
constexpr std::string_view kWork[] = {"worked",
                                      "cooked",
                                      "sang",
                                      "rested",
                                      "counted the money",
                                      "read a book",
                                      "cut the grass",
                                      "fed the birds",
                                      "built a wall",
                                      "wrote a letter",
                                      "swept the floor",
                                      "washed the plates",
                                      "chopped wood",
                                      "told a story",
                                      "played cards",
                                      "picked berries",
                                      "mended a shoe",
                                      "baked a pie",
                                      "dug a hole",
                                      "lit a fire"};
constexpr std::string_view kViews[] = {
    "was far too expensive", "looked better than before", "needed more work",
    "was worth the trouble", "came from a distant town",  "had a strange smell",
    "was the best of all",   "would last for years",      "reminded everyone of home",
    "was much too small",    "had been a gift",           "was gone"};

// A letter after '$' stands for a word of a list.
constexpr std::string_view kTemplates[] = {
    "the $b $p $v the $a $t $d .",
    "$d the $p $m to the $l .",
    "$n $v the $a $t for the $p .",
    "the $c $s near the $l while the $p $k .",
    "the weather was $w , so $n $k at the $l .",
    "$n and the $b $p ate $f at the $l .",
    "the $p told $n about the $a $t .",
    "it was $w $d , and the $c $s .",
    "the $b $p $m from the $l to the $l .",
    "$n thought that the $t $o .",
    "the $p said that the $a $t $o .",
    "when the $p $k , the $b $p $v the $t .",
    "$n gave $f to the $c $d .",
    "the $l was $w and quiet $d .",
    "the $a $t at the $l $o .",
    "$d $n cooked $f and $f for the $p .",
    "nobody at the $l knew why $n $v the $a $t .",
    "the $p and the $c $m to the $l $d .",
    "after a $w night the $p $k and $k .",
    "$n asked the $b $p for some $f .",
    "the $b $p of the $l $v the $a $t .",
    "because it was $w , the $c and the $c $s .",
    "$n $k until the $p $m home .",
    "the price of $f rose , but the $p $v the $t .",
};

struct Lists {
  std::array<Words, 128> by_letter;

  Lists() {
    by_letter['n'] = kNames;
    by_letter['p'] = kPeople;
    by_letter['b'] = kTraits;
    by_letter['a'] = kQualities;
    by_letter['t'] = kThings;
    by_letter['v'] = kDeeds;
    by_letter['m'] = kMoves;
    by_letter['f'] = kFood;
    by_letter['w'] = kWeather;
    by_letter['d'] = kTimes;
    by_letter['s'] = kNoises;
    by_letter['k'] = kWork;
    by_letter['o'] = kViews;
    by_letter['c'] = Animals();
    by_letter['l'] = Places();
  }
};

void Capitalise(char& letter) {
  if (letter >= 'a' && letter <= 'z') letter -= 'a' - 'A';
}

}  // namespace

void AppendSentence(ProseStyle style, Random& rng, std::string& text) {
  static const Lists lists;
  const size_t begin = text.size();
  std::string_view rest = kTemplates[rng.Below(std::size(kTemplates))];
  while (true) {
    const size_t slot = std::min(rest.find('$'), rest.size());
    text.append(rest.substr(0, slot));
    if (slot == rest.size()) break;
    const char letter = rest[slot + 1];
    const size_t word = text.size();
    text.append(Pick(lists.by_letter[static_cast<unsigned char>(letter)], rng));
    if (letter == 'n' && style == ProseStyle::kNatural) Capitalise(text[word]);
    rest.remove_prefix(slot + 2);
  }
  if (style == ProseStyle::kPlain) return;
  Capitalise(text[begin]);
  // Natural prose has no space before a mark.
  size_t kept = begin;
  for (size_t i = begin; i < text.size(); ++i) {
    if ((text[i] == ',' || text[i] == '.') && text[kept - 1] == ' ') --kept;
    text[kept++] = text[i];
  }
  text.resize(kept);
}

void AppendSentences(ProseStyle style, int n, Random& rng, std::string& text) {
  for (int i = 0; i < n; ++i) {
    AppendSentence(style, rng, text);
    text += ' ';
  }
}

}  // namespace kvlathe
