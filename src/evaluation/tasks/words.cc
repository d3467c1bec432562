#include "evaluation/tasks/words.h"

#include <algorithm>
#include <vector>

namespace kvlathe {
namespace {

std::vector<std::string_view> Split(std::string_view text) {
  std::vector<std::string_view> words;
  size_t begin = 0;
  while ((begin = text.find_first_not_of(' ', begin)) != std::string_view::npos) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    words.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  return words;
}

constexpr std::string_view kCommon =
    "able about above across act add after again age agree air all allow almost alone along also "
    "always among anger answer any apple area arm army around arrive art ask aunt away baby back "
    "bad bag bake ball band bank bar base basket bath beach bean bear beat bed bee before begin "
    "behind bell below belt bench beside best better between big bird bit black blue board boat "
    "body bone book boot born both bottle bottom bowl box boy branch bread break brick bridge "
    "bright bring broad brother brown brush build burn bus bush busy butter button buy cake call "
    "calm camp can candle cap car card care carry cart case cat catch cave center chain chair "
    "chalk chance change cheap cheese chest chicken child choose church circle city class clay "
    "clean clear climb clock close cloth cloud coal coast coat coffee coin cold collar color come "
    "cook cool copper copy corn corner cost cotton count country course cousin cover cow cream "
    "cross crowd crown cry cup curtain cut dance dark date day deal dear deep deer desk dinner "
    "dirt "
    "dish doctor dog dollar door double down draw dream dress drink drive drop drum dry duck dust "
    "each ear early earth east easy eat edge egg eight elbow empty end engine enjoy enough enter "
    "even ever every eye face fact fair fall family far farm fast father fear feather feed feel "
    "fence few field fight fill find fine finger finish fire first fish five flag flame flat floor "
    "flour flower fly fold follow food foot forest forget fork form four fox free fresh friend "
    "frog "
    "from front fruit full fun game garden gate gather gentle gift girl give glad glass glove goat "
    "gold good goose grain grand grass gray great green ground group grow guess guest hair half "
    "hall hammer hand happy hard harbor hat hay head hear heart heat heavy help hen here hide high "
    "hill hold hole holiday home honey hope horn horse hot hotel hour house hungry hunt hurry ice "
    "idea inch ink iron island jacket jam jar job join juice jump keep kettle key kick kind king "
    "kitchen kite knee knife knock know ladder lady lake lamb lamp land large last late laugh lead "
    "leaf learn leather leave left leg lemon lesson letter life lift light like line lion lip list "
    "listen little live long look loose lose loud love low luck lunch machine maid mail make man "
    "many map mark market master match maybe meal measure meat meet melt metal middle milk mill "
    "mind mine minute mirror mix money month moon more morning most mother mountain mouse mouth "
    "move much mud music nail name narrow near neck need needle nest net never new next nice night "
    "nine noise noon north nose note nothing now number nurse nut oak ocean office often oil old "
    "once one onion only open orange order other outside oven over owl own page paint pair paper "
    "park part party pass past path pay peace pear pen pencil people pepper picnic picture piece "
    "pig pin pipe place plain plan plant plate play please plenty pocket point pond pony pool poor "
    "post pot potato pound present press pretty price prize proud pull pump pupil push put queen "
    "quick quiet rabbit rain raise reach read ready real red rest rice rich ride right ring rise "
    "river road rock roll roof room root rope rose round row rub rule run safe sail salt same sand "
    "save say school sea seat second seed seem sell send seven shade shake shape share sharp sheep "
    "shelf shell shine ship shirt shoe shop short shoulder show shut side sign silk silver";

constexpr std::string_view kAdjectives =
    "amber ancient bitter blunt bold brave bright broken calm cheap clever cold crooked curly damp "
    "dark deep dusty early eager empty faded fancy fast fierce flat fresh gentle giant golden "
    "grand "
    "happy heavy hidden hollow honest humble icy idle jolly keen large lazy light little lonely "
    "loud lucky mellow merry mighty modern narrow noble odd old pale plain polite proud quick "
    "quiet "
    "rare rough round rusty sharp shiny short silent simple sleepy small smooth soft steady strong "
    "tall tame thin tidy tiny vast warm wild wise young";

constexpr std::string_view kNouns =
    "acorn anchor anvil apple arrow basket beach bell bench berry blanket bottle branch bread "
    "brick "
    "bridge bucket button cabin cable candle canyon carpet castle chain cherry chimney clay cloud "
    "clover copper coral cotton cradle crystal curtain desert drum engine feather fence ferry flag "
    "flame forest fountain garden glacier grape hammer harbor hedge honey island jacket jungle "
    "kettle ladder lantern leather lemon linen magnet maple marble meadow mirror needle ocean "
    "olive "
    "orchard paddle paper pebble pencil pepper pillow planet pond powder prairie puzzle quilt "
    "ribbon "
    "river rocket saddle sail shadow shell shovel silver spoon spring stone storm sugar sunset "
    "table "
    "thunder timber tower tunnel valley velvet violin wagon walnut water wheel whistle willow "
    "window "
    "winter";

constexpr std::string_view kAnimals =
    "badger bat bear beaver bee bull camel cat cow crab crane crow deer dog donkey dove duck eagle "
    "falcon ferret fox frog goat goose hare hawk hen heron horse hound lamb lion lizard mole moth "
    "mouse mule otter owl ox parrot pig pony rabbit raven robin seal sheep snail sparrow spider "
    "squirrel swan tiger toad turtle wasp whale wolf worm";

constexpr std::string_view kColours =
    "red blue green yellow brown black white grey pink orange purple golden silver violet";

constexpr std::string_view kPlaces =
    "barn bay beach bridge bush cave cellar church cliff field forest garden harbor hill hut "
    "island "
    "lake marsh market meadow mill mine orchard park pond quarry river school shed square stable "
    "station swamp tower valley village well wood yard";

constexpr std::string_view kMaterials =
    "brass bronze clay copper cotton crystal glass gold iron ivory jade leather linen marble oak "
    "paper pearl pine silk silver steel stone tin velvet wax wood wool";

constexpr std::string_view kItems =
    "ball badge bell book bowl bracelet brush button candle card chain clock coin comb compass "
    "crown "
    "cup dice doll flute fork hammer key knife lamp letter lock map mask medal mirror needle pen "
    "pencil pipe plate ribbon ring rope ruler scarf spoon stamp thimble ticket toy vase whistle";

constexpr std::string_view kContainers =
    "bag barrel basin basket bin box bucket cabinet case chest crate cupboard drawer jar pot sack "
    "safe shelf suitcase trunk tub wardrobe";

constexpr std::string_view kRooms =
    "attic bedroom cellar chamber closet corridor den gallery hall kitchen library loft lounge "
    "office pantry parlour porch room study studio vault workshop";

constexpr std::string_view kBuildings =
    "abbey barn cabin castle chapel cottage factory farm fort hotel house hut inn lodge mansion "
    "mill "
    "museum palace school shop station temple theatre tower villa";

constexpr std::string_view kAspects =
    "food service room staff view price music bed garden wine breakfast pool soup bread coffee";

constexpr std::string_view kGood =
    "lovely great good excellent wonderful superb pleasant perfect delightful splendid charming "
    "fantastic fine nice amazing brilliant marvellous enjoyable impressive outstanding pleasing "
    "beautiful terrific fabulous admirable glorious magnificent stunning";

constexpr std::string_view kBad =
    "awful bad terrible horrible dreadful poor nasty disgusting rude gloomy dismal shabby dirty "
    "disappointing unpleasant miserable ghastly boring annoying mediocre lousy dull appalling "
    "hopeless shameful useless worthless tasteless";

constexpr std::string_view kTypes = "int text bool float";

}  // namespace

#define KVL_WORD_LIST(function, text)                               \
  WordList function() {                                             \
    static const std::vector<std::string_view> words = Split(text); \
    return words;                                                   \
  }

KVL_WORD_LIST(CommonWords, kCommon)
KVL_WORD_LIST(Adjectives, kAdjectives)
KVL_WORD_LIST(Nouns, kNouns)
KVL_WORD_LIST(Animals, kAnimals)
KVL_WORD_LIST(Colours, kColours)
KVL_WORD_LIST(Places, kPlaces)
KVL_WORD_LIST(Materials, kMaterials)
KVL_WORD_LIST(Items, kItems)
KVL_WORD_LIST(Containers, kContainers)
KVL_WORD_LIST(Rooms, kRooms)
KVL_WORD_LIST(Buildings, kBuildings)
KVL_WORD_LIST(Aspects, kAspects)
KVL_WORD_LIST(GoodWords, kGood)
KVL_WORD_LIST(BadWords, kBad)
KVL_WORD_LIST(FieldTypes, kTypes)

#undef KVL_WORD_LIST

}  // namespace kvlathe
