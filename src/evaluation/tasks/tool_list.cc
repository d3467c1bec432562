#include "evaluation/tasks/tool_list.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

namespace kvlathe {
namespace {

constexpr std::string_view kDays[] = {"monday", "tuesday",  "wednesday", "thursday",
                                      "friday", "saturday", "sunday"};
constexpr std::string_view kCurrencies[] = {"EUR", "USD", "GBP", "CHF", "JPY", "SEK"};
constexpr std::string_view kHouseRooms[] = {"kitchen", "bedroom", "office", "hall", "cellar"};
constexpr std::string_view kPriorities[] = {"low", "normal", "high", "urgent"};
constexpr std::string_view kShipping[] = {"standard", "express", "pickup"};
constexpr std::string_view kTemperatureUnits[] = {"celsius", "fahrenheit"};
constexpr std::string_view kReasons[] = {"late", "damaged", "duplicate", "unwanted"};
constexpr std::string_view kTravelClasses[] = {"first", "second", "sleeper"};
constexpr std::string_view kTaskLists[] = {"home", "work", "garden"};
constexpr std::string_view kReportFormats[] = {"pdf", "csv", "html", "txt"};
constexpr std::string_view kCarSizes[] = {"small", "medium", "large"};
constexpr std::string_view kSeats[] = {"window", "terrace", "bar"};
constexpr std::string_view kTowns[] = {"Oslo",   "Paris",  "Lisbon", "Vienna", "Prague",
                                       "Dublin", "Athens", "Warsaw", "Madrid", "Rome",
                                       "Berlin", "London", "Cairo",  "Lima",   "Tokyo"};
constexpr std::string_view kFriends[] = {"Alice", "Boris", "Carla", "David", "Elena", "Frank",
                                         "Grace", "Hugo",  "Irene", "Jonas", "Karin", "Leo"};
constexpr std::string_view kRestaurants[] = {
    "Luna",     "The Anchor", "Green Fork",  "Bella Vista",  "Saffron",
    "Old Mill", "Blue Door",  "Pepper Tree", "Corner House", "Red Lantern"};
constexpr std::string_view kArtists[] = {"The Otters",    "Mara Quinn",  "Silver Lake",
                                         "Tin Orchestra", "Paper Kites", "Nils Berg"};
constexpr std::string_view kChores[] = {"water the plants", "pay the rent",   "wash the car",
                                        "call the bank",    "sort the books", "paint the fence",
                                        "feed the cat",     "renew the card"};
constexpr std::string_view kTopics[] = {"broken screen", "missing invoice", "slow connection",
                                        "wrong address", "lost password",   "noisy fan"};
constexpr std::string_view kNews[] = {"the meeting is over", "dinner is ready",
                                      "the train is late",   "the parcel has come",
                                      "the keys are here",   "the shop is closed"};

// What an argument may be.
constexpr ToolArgument Text(std::string_view name, std::span<const std::string_view> values) {
  return {.name = name, .values = values};
}
constexpr ToolArgument OneOf(std::string_view name, std::span<const std::string_view> values) {
  return {.name = name, .values = values, .is_enum = true};
}
constexpr ToolArgument Whole(std::string_view name, int min, int max) {
  return {.name = name, .min = min, .max = max};
}
// An argument that a request may refer to.
constexpr ToolArgument Said(ToolArgument argument, std::string_view fact,
                            std::string_view mention) {
  argument.fact = fact;
  argument.mention = mention;
  return argument;
}
constexpr ToolArgument Optional(ToolArgument argument) {
  argument.is_optional = true;
  return argument;
}

constexpr ToolArgument kAlarmArguments[] = {Text("label", kChores), Whole("hour", 5, 23),
                                            Whole("minute", 1, 59),
                                            Optional(OneOf("repeat", kDays))};
constexpr ToolArgument kTableArguments[] = {
    Said(Text("restaurant", kRestaurants), "The restaurant that I like best is $v.",
         "the restaurant that I like best"),
    Whole("guests", 2, 12), OneOf("day", kDays), Optional(OneOf("place", kSeats))};
constexpr ToolArgument kMessageArguments[] = {
    Said(Text("recipient", kFriends), "The neighbour who keeps my keys is $v.",
         "the neighbour who keeps my keys"),
    Text("text", kNews), OneOf("priority", kPriorities)};
constexpr ToolArgument kExchangeArguments[] = {
    Said(Whole("amount", 10, 9999), "The sum that I have saved is $v.",
         "the sum that I have saved"),
    OneOf("from_currency", kCurrencies), OneOf("to_currency", kCurrencies)};
constexpr ToolArgument kWeatherArguments[] = {
    Said(Text("city", kTowns), "The city where my sister lives is $v.",
         "the city where my sister lives"),
    Whole("days", 2, 14), OneOf("unit", kTemperatureUnits)};
constexpr ToolArgument kTransferArguments[] = {
    Said(Whole("account", 10000, 99999), "My landlord's account number is $v.",
         "my landlord's account number"),
    Whole("amount", 10, 9999), OneOf("currency", kCurrencies), Optional(OneOf("day", kDays))};
constexpr ToolArgument kPartsArguments[] = {
    Said(Whole("article", 10000, 99999), "The article number of the pump is $v.",
         "the article number of the pump"),
    Whole("quantity", 2, 90), OneOf("shipping", kShipping)};
constexpr ToolArgument kTicketArguments[] = {
    Said(Whole("customer", 10000, 99999), "My customer number is $v.", "my customer number"),
    Text("topic", kTopics), OneOf("priority", kPriorities),
    Optional(Whole("phone", 100000, 999999))};
constexpr ToolArgument kMusicArguments[] = {
    Said(Text("artist", kArtists), "The band of my brother is $v.", "the band of my brother"),
    OneOf("room", kHouseRooms), Whole("volume", 1, 99)};
constexpr ToolArgument kHeatingArguments[] = {OneOf("room", kHouseRooms), Whole("degrees", 12, 26),
                                              Whole("hours", 2, 12)};
constexpr ToolArgument kTrainsArguments[] = {
    Text("origin", kTowns),
    Said(Text("destination", kTowns), "The city where the fair takes place is $v.",
         "the city where the fair takes place"),
    OneOf("class", kTravelClasses), Whole("passengers", 2, 9)};
constexpr ToolArgument kTaskArguments[] = {OneOf("list", kTaskLists), Text("title", kChores),
                                           OneOf("due_day", kDays)};
constexpr ToolArgument kCancelArguments[] = {
    Said(Whole("order", 10000, 99999), "The number of my last order is $v.",
         "the number of my last order"),
    OneOf("reason", kReasons)};
constexpr ToolArgument kCarArguments[] = {Text("city", kTowns), OneOf("size", kCarSizes),
                                          Whole("days", 2, 20), Optional(Text("driver", kFriends))};
constexpr ToolArgument kReportArguments[] = {
    Said(Whole("project", 100, 999), "The number of the bridge project is $v.",
         "the number of the bridge project"),
    OneOf("format", kReportFormats), Whole("month", 1, 12)};

constexpr Tool kTools[] = {
    {"set_alarm", "Sets an alarm with a label.",
     "Set an alarm with the label \"$0\" for hour $1 and minute $2.", kAlarmArguments},
    {"book_table", "Books a table in a restaurant.",
     "Book a table for $1 guests on $2. The restaurant is $0.", kTableArguments},
    {"send_message", "Sends a text message to a person.",
     "Send a message with $2 priority and the text \"$1\". The recipient is $0.",
     kMessageArguments},
    {"convert_currency", "Converts an amount of money to another currency.",
     "Convert an amount from $1 to $2. The amount is $0.", kExchangeArguments},
    {"get_weather", "Gives the weather forecast of a city for some days.",
     "Get the weather of the next $1 days in $2. The city is $0.", kWeatherArguments},
    {"transfer_money", "Transfers money to an account.",
     "Transfer $1 $2. The account to send it to is $0.", kTransferArguments},
    {"order_parts", "Orders spare parts by their article number.",
     "Order $1 pieces with $2 shipping. The article is $0.", kPartsArguments},
    {"open_ticket", "Opens a support ticket for a customer.",
     "Open a ticket of $2 priority on the topic \"$1\". The customer is $0.", kTicketArguments},
    {"play_music", "Plays music of an artist in a room.",
     "Play music in the $1 at volume $2. The artist is $0.", kMusicArguments},
    {"set_heating", "Heats a room for some hours.", "Heat the $0 to $1 degrees for $2 hours.",
     kHeatingArguments},
    {"find_trains", "Looks for trains between two cities.",
     "Find trains from $0 in $2 class for $3 passengers. The destination is $1.", kTrainsArguments},
    {"add_task", "Adds a task to a list.", "Add the task \"$1\" to the list \"$0\", due on $2.",
     kTaskArguments},
    {"cancel_order", "Cancels an order.", "Cancel an order for the reason \"$1\". The order is $0.",
     kCancelArguments},
    {"rent_car", "Rents a car in a city.", "Rent a $1 car in $0 for $2 days.", kCarArguments},
    {"export_report", "Exports the report of a project for a month.",
     "Export the report of month $2 as $1. The project is $0.", kReportArguments},
};

std::string ArgumentSchema(const ToolArgument& argument) {
  if (argument.is_integer()) return "{\"type\": \"integer\"}";
  if (!argument.is_enum) return "{\"type\": \"string\"}";
  return fmt::format("{{\"type\": \"string\", \"enum\": [\"{}\"]}}",
                     fmt::join(argument.values, "\", \""));
}

}  // namespace

std::string ToolArgument::Draw(Random& rng) const {
  if (!is_integer()) return std::string(values[rng.Below(values.size())]);
  return std::to_string(min + static_cast<int>(rng.Below(static_cast<uint64_t>(max - min + 1))));
}

std::span<const Tool> AllTools() { return kTools; }

std::string SchemaOf(const Tool& tool) {
  std::vector<std::string> properties, required;
  for (const ToolArgument& argument : tool.arguments) {
    properties.push_back(fmt::format("\"{}\": {}", argument.name, ArgumentSchema(argument)));
    if (!argument.is_optional) required.push_back(fmt::format("\"{}\"", argument.name));
  }
  return fmt::format(
      "{{\"name\": \"{}\", \"description\": \"{}\", \"parameters\": {{\"type\": \"object\", "
      "\"properties\": {{{}}}, \"required\": [{}]}}}}",
      tool.name, tool.description, fmt::join(properties, ", "), fmt::join(required, ", "));
}

}  // namespace kvlathe
