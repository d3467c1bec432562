#include "structured/text_formats.h"

#include <map>
#include <string>

namespace kvlathe {
namespace {

std::map<std::string_view, std::string> MakeFormats() {
  const std::string day31 = "(0[1-9]|[12]\\d|3[01])", day30 = "(0[1-9]|[12]\\d|30)";
  const std::string date =
      "(\\d{4}-((0[13578]|1[02])-" + day31 + "|(0[469]|11)-" + day30 + "|02-(0[1-9]|1\\d|2[0-8])))";
  const std::string clock = "([01]\\d|2[0-3]):[0-5]\\d";
  const std::string time = "(" + clock + ":[0-5]\\d(\\.\\d{1,9})?(Z|[+-]" + clock + "))";
  const std::string of_day = "(\\d+H(\\d+M(\\d+S)?)?|\\d+M(\\d+S)?|\\d+S)";
  const std::string days = "(\\d+Y(\\d+M(\\d+D)?)?|\\d+M(\\d+D)?|\\d+D)";
  const std::string label = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?";
  const std::string host = "(" + label + "(\\." + label + ")*)";
  const std::string atom = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+";
  const std::string octet = "(25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)";
  const std::string h = "[0-9A-Fa-f]{1,4}";
  std::string ipv6 = "((" + h + ":){7}" + h + "|(" + h + ":){1,7}:|:(:" + h + "){1,7}|::";
  for (int n = 1; n <= 6; ++n) {  // so many groups at most behind the gap
    ipv6 +=
        "|(" + h + ":){1," + std::to_string(7 - n) + "}(:" + h + "){1," + std::to_string(n) + "}";
  }
  ipv6 += ")";
  const std::string escaped = "%[0-9A-Fa-f]{2}";
  const std::string part = "([A-Za-z0-9._~!$&'()*+,;=:@-]|" + escaped + ")";
  const std::string tail = "(\\?(" + part + "|[/?])*)?(#(" + part + "|[/?])*)?";
  const std::string authority =
      "(([A-Za-z0-9._~!$&'()*+,;=:-]|" + escaped + ")*@)?" + host + "(:\\d{1,5})?";
  const std::string uri = "([A-Za-z][A-Za-z0-9+.-]*:(//" + authority + "(/" + part + "*)*|" + part +
                          "+(/" + part + "*)*)" + tail + ")";
  const std::string pointer = "((/([^/~]|~[01])*)*)";
  return {{"date", date},
          {"time", time},
          {"date-time", date + "T" + time},
          {"duration", "P(" + days + "(T" + of_day + ")?|T" + of_day + "|\\d+W)"},
          {"email", atom + "(\\." + atom + ")*@" + host},
          {"hostname", host},
          {"ipv4", octet + "(\\." + octet + "){3}"},
          {"ipv6", ipv6},
          {"uuid", "[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"},
          {"uri", uri},
          {"uri-reference", "(" + uri + "|(/" + part + "*)+" + tail + ")"},
          {"json-pointer", pointer},
          {"relative-json-pointer", "(0|[1-9]\\d*)(#|" + pointer + ")"}};
}

}  // namespace

std::optional<std::string_view> PatternOfFormat(std::string_view format) {
  static const std::map<std::string_view, std::string> formats = MakeFormats();
  const auto found = formats.find(format);
  if (found == formats.end()) return std::nullopt;
  return found->second;
}

}  // namespace kvlathe
