// How the answers of a chat template are written: where thoughts and calls of tools begin and end.
// Found by rendering answers and comparing them (answer_discovery.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace kvlathe {

// A call is written
//   call_begin NAME name_end ARGUMENTS call_end
// and an answer with several of them
//   section_begin CALL between CALL section_end
struct CallFormat {
  enum class Arguments {
    kJson,    // a JSON object
    kTagged,  // for each: key_begin KEY key_end VALUE value_end
    kPython,  // KEY=VALUE, KEY=VALUE with values as in Python
  };
  Arguments arguments = Arguments::kJson;
  std::string section_begin, section_end;
  std::string call_begin, name_end, call_end;
  std::string between;
  // The call is a JSON object of its own, which begins in call_begin: its entries can come in
  // another order than name_end tells. The keys of name and arguments, and of an object around
  // both.
  bool is_object = false;
  std::string name_key, arguments_key, around_key;
  bool is_one_call = false;  // the template prints no second call
  // What the model writes in front of a call counts as its name ("functions.NAME:0").
  bool ids_hold_names = false;

  // kTagged.
  std::string key_begin, key_end, value_end;
  std::string key_end_other;  // where the value is no text, if that is marked; else empty
  // kTagged: between value_end and key_begin. Of an object whose name stands behind its arguments:
  // between these and the name.
  std::string between_arguments;
  std::string text_quote;          // around a text, where texts have marks
  bool texts_may_be_data = false;  // a text may stand within <![CDATA[ and ]]>
  bool texts_are_json = false;     // a text is written as JSON, in quotes
};

// Around the thoughts at the beginning of an answer.
struct ThoughtFormat {
  std::string begin, end;
  bool is_open = false;  // the prompt ends within: answers begin with thoughts
};

struct AnswerFormat {
  std::optional<ThoughtFormat> thoughts;
  std::optional<CallFormat> calls;
  std::string why_no_calls;  // empty: the template prints no calls
  // In front of an answer's text, behind what opens an answer, and behind it; mostly empty.
  std::string text_begin, text_end;
  // What stands behind an answer: the first control text of it ends an answer.
  std::vector<std::string> ends;
};

}  // namespace kvlathe
