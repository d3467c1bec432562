// Chat templates of our own, one for each format of the families that models use, each with what
// Jinja renders of the conversation below. The renderings come from Python's jinja2 with
// trim_blocks and lstrip_blocks, as in Hugging Face; those of a system message in the two templates
// of Mistral without one follow Mistral's later format.
//   system " Be brief. ", user " Hello\n", assistant "  Hi\n", user "Who?\r\n\r\nYou?"
#pragma once

namespace kvlathe {

struct SampleChatTemplate {
  const char* name;
  const char* family;  // that it is recognised as
  const char* bos;
  const char* eos;
  const char* text;
  const char* with_system;  // empty: refused
  const char* without_system;
};

// What several of them render.
inline constexpr const char* kChatmlWithSystem =
    "<|im_start|>system\n Be brief. <|im_end|>\n<|im_start|>user\n "
    "Hello\n<|im_end|>\n<|im_start|>assistant\n  "
    "Hi\n<|im_end|>\n<|im_start|>user\nWho?\r\n\r\nYou?<|im_end|>\n<|im_start|>assistant\n";
inline constexpr const char* kChatmlWithoutSystem =
    "<|im_start|>user\n Hello\n<|im_end|>\n<|im_start|>assistant\n  "
    "Hi\n<|im_end|>\n<|im_start|>user\nWho?\r\n\r\nYou?<|im_end|>\n<|im_start|>assistant\n";
inline constexpr const char* kQwen2WithoutSystem =
    "<|im_start|>system\nSay what you know.<|im_end|>\n<|im_start|>user\n "
    "Hello\n<|im_end|>\n<|im_start|>assistant\n  "
    "Hi\n<|im_end|>\n<|im_start|>user\nWho?\r\n\r\nYou?<|im_end|>\n<|im_start|>assistant\n";
inline constexpr const char* kLlama2WithSystem =
    "<s>[INST] <<SYS>>\n Be brief. \n<</SYS>>\n\n Hello [/INST] Hi </s><s>[INST] Who?\r\n\r\nYou? "
    "[/INST]";
inline constexpr const char* kPhi3MiniWithSystem =
    "<s><|user|>\n Hello\n<|end|>\n<|assistant|>\n  "
    "Hi\n<|end|>\n<|user|>\nWho?\r\n\r\nYou?<|end|>\n<|assistant|>\n";
inline constexpr const char* kZephyrWithSystem =
    "<|system|>\n Be brief. </s>\n<|user|>\n Hello\n</s>\n<|assistant|>\n  "
    "Hi\n</s>\n<|user|>\nWho?\r\n\r\nYou?</s>\n<|assistant|>\n";
inline constexpr const char* kZephyrWithoutSystem =
    "<|user|>\n Hello\n</s>\n<|assistant|>\n  "
    "Hi\n</s>\n<|user|>\nWho?\r\n\r\nYou?</s>\n<|assistant|>\n";
inline constexpr const char* kGemmaWithoutSystem =
    "<bos><start_of_turn>user\nHello<end_of_turn>\n<start_of_turn>model\nHi<end_of_turn>\n<start_"
    "of_turn>user\nWho?\r\n\r\nYou?<end_of_turn>\n<start_of_turn>model\n";

// Of templates that put the system message into the first turn, or into the last.
#define KVL_RULES_IN_TURN(which)                     \
  "{% set turns = messages %}\n"                     \
  "{% if messages[0].role == 'system' %}\n"          \
  "  {% set rules = messages[0].content %}\n"        \
  "  {% set turns = messages[1:] %}\n"               \
  "{% endif %}\n"                                    \
  "{{ bos_token }}\n"                                \
  "{%- for turn in turns %}\n"                       \
  "  {% set words = turn.content %}\n"               \
  "  {% if loop." which                              \
  " and rules %}\n"                                  \
  "    {% set words = rules + '\\n\\n' + words %}\n" \
  "  {% endif %}\n"

inline constexpr SampleChatTemplate kSampleChatTemplates[] = {
    {"chatml", "chatml", "", "<|endoftext|>",
     R"({% for turn in messages %}<|im_start|>{{ turn.role }}
{{ turn.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %})",
     kChatmlWithSystem, kChatmlWithoutSystem},
    {"qwen2", "chatml", "", "<|im_end|>",
     R"({% if messages[0].role != 'system' %}<|im_start|>system
Say what you know.<|im_end|>
{% endif %}{% for turn in messages %}<|im_start|>{{ turn.role }}
{{ turn.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %})",
     kChatmlWithSystem, kQwen2WithoutSystem},
    {"qwen2.5", "chatml", "", "<|im_end|>",
     R"({%- if tools -%}
  {{ '<|im_start|>system\n' ~ tools | tojson ~ '<|im_end|>\n' }}
{%- elif messages[0].role != 'system' -%}
  {{ '<|im_start|>system\nSay what you know.<|im_end|>\n' }}
{%- endif -%}
{%- for turn in messages -%}
  {{ '<|im_start|>' ~ turn.role ~ '\n' ~ turn.content ~ '<|im_end|>\n' }}
{%- endfor -%}
{{ '<|im_start|>assistant\n' if add_generation_prompt }})",
     kChatmlWithSystem, kQwen2WithoutSystem},
    {"yi15", "chatml", "<|startoftext|>", "<|im_end|>",
     R"({% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}
{% for turn in messages %}
  {% if turn.role == 'user' %}
<|im_start|>user
{{ turn.content }}<|im_end|>
<|im_start|>assistant
  {% elif turn.role == 'assistant' %}
{{ turn.content }}<|im_end|>
  {% endif %}
{% endfor %})",
     " Be brief. <|im_start|>user\n Hello\n<|im_end|>\n<|im_start|>assistant\n  Hi\n<|im_end|>\n"
     "<|im_start|>user\nWho?\r\n\r\nYou?<|im_end|>\n<|im_start|>assistant\n",
     kChatmlWithoutSystem},
    {"llama2", "llama2", "<s>", "</s>",
     R"({% if messages[0].role == 'system' %}
  {% set rules = messages[0].content %}
  {% set turns = messages[1:] %}
{% else %}
  {% set turns = messages %}
{% endif %}
{% for turn in turns %}
  {% set words = turn.content %}
  {% if loop.first and rules %}
    {% set words = '<<SYS>>\n' + rules + '\n<</SYS>>\n\n' + words %}
  {% endif %}
  {% if turn.role == 'user' %}
{{ bos_token }}[INST] {{ words | trim }} [/INST]
  {%- else %} {{ words | trim }} {{ eos_token }}
  {%- endif %}
{% endfor %})",
     kLlama2WithSystem, "<s>[INST] Hello [/INST] Hi </s><s>[INST] Who?\r\n\r\nYou? [/INST]"},
    {"llama2-default", "llama2", "<s>", "</s>",
     R"({% if messages[0].role == 'system' %}
  {% set rules = messages[0].content %}
  {% set turns = messages[1:] %}
{% else %}
  {% set rules = 'You don\'t guess.' %}
  {% set turns = messages %}
{% endif %}
{% for turn in turns %}
  {% set words = turn.content %}
  {% if loop.first and rules %}
    {% set words = '<<SYS>>\n' + rules + '\n<</SYS>>\n\n' + words %}
  {% endif %}
  {% if turn.role == 'user' %}
{{ bos_token }}[INST] {{ words | trim }} [/INST]
  {%- else %} {{ words | trim }} {{ eos_token }}
  {%- endif %}
{% endfor %})",
     kLlama2WithSystem,
     "<s>[INST] <<SYS>>\nYou don't guess.\n<</SYS>>\n\n Hello [/INST] Hi </s><s>[INST] Who?\r\n"
     "\r\nYou? [/INST]"},
    {"llama3", "llama3", "<|begin_of_text|>", "<|eot_id|>",
     R"({{ bos_token }}{% for turn in messages %}<|start_header_id|>{{ turn.role }}<|end_header_id|>

{{ turn.content.strip() }}<|eot_id|>{% endfor %}
{% if add_generation_prompt %}
<|start_header_id|>assistant<|end_header_id|>

{% endif %})",
     "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n"
     "Be brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n"
     "Hello<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
     "Hi<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nWho?\r\n\r\n"
     "You?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
     "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n"
     "Hello<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
     "Hi<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nWho?\r\n\r\n"
     "You?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"},
    {"llama3.1", "llama3.1", "<|begin_of_text|>", "<|eot_id|>",
     R"({% set day = date_string if date_string is defined else '26 Jul 2024' %}
{% set turns = messages %}
{{ bos_token }}<|start_header_id|>system<|end_header_id|>

Cutting Knowledge Date: December 2023
Today Date: {{ day }}

{% if messages[0].role == 'system' %}
  {% set turns = messages[1:] %}
{{ messages[0].content | trim }}
{%- endif %}
<|eot_id|>{% for turn in turns %}<|start_header_id|>{{ turn.role }}<|end_header_id|>

{{ turn.content.strip() }}<|eot_id|>{% endfor %}
{% if add_generation_prompt %}
<|start_header_id|>assistant<|end_header_id|>

{% endif %})",
     "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n"
     "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n"
     "Be brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n"
     "Hello<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
     "Hi<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nWho?\r\n\r\n"
     "You?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
     "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n"
     "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n"
     "<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n"
     "Hello<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
     "Hi<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nWho?\r\n\r\n"
     "You?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"},
    {"mistral-v1", "mistral-v1", "<s>", "</s>",
     R"({{ bos_token }}{% for turn in messages %}{% if loop.index is odd and turn.role != 'user' %}{{ raise_exception('turns: user, assistant, user') }}{% endif %}{% if turn.role == 'user' %}[INST] {{ turn.content }} [/INST]{% else %}{{ turn.content + eos_token }}{% endif %}{% endfor %})",
     "<s>[INST]  Be brief. \n\n Hello\n [/INST]  Hi\n</s>[INST] Who?\r\n\r\nYou? [/INST]",
     "<s>[INST]  Hello\n [/INST]  Hi\n</s>[INST] Who?\r\n\r\nYou? [/INST]"},
    {"mistral-v01", "mistral-v1", "<s>", "</s>",
     R"({{ bos_token }}{% for turn in messages %}{% if loop.index is odd and turn.role != 'user' %}{{ raise_exception('turns: user, assistant, user') }}{% endif %}{% if turn.role == 'user' %}[INST] {{ turn.content }} [/INST]{% else %}{{ turn.content + eos_token }} {% endif %}{% endfor %})",
     "<s>[INST]  Be brief. \n\n Hello\n [/INST]  Hi\n</s> [INST] Who?\r\n\r\nYou? [/INST]",
     "<s>[INST]  Hello\n [/INST]  Hi\n</s> [INST] Who?\r\n\r\nYou? [/INST]"},
    {"mistral-v1-sys", "mistral-v1", "<s>", "</s>",
     KVL_RULES_IN_TURN("first") R"(  {% if turn.role == 'user' %}
    {{- ' [INST] ' + words + ' [/INST]' }}
  {%- else %}
    {{- ' ' + turn.content + eos_token }}
  {%- endif %}
{% endfor %})",
     "<s> [INST]  Be brief. \n\n Hello\n [/INST]   Hi\n</s> [INST] Who?\r\n\r\nYou? [/INST]",
     "<s> [INST]  Hello\n [/INST]   Hi\n</s> [INST] Who?\r\n\r\nYou? [/INST]"},
    {"mistral-v3", "mistral-v1", "<s>", "</s>",
     KVL_RULES_IN_TURN("last") R"(  {% if turn.role == 'user' %}
    {%- if tools and loop.last %}{{ '[AVAILABLE_TOOLS]' + tools | tojson + '[/AVAILABLE_TOOLS]' }}{% endif %}
    {{- '[INST] ' + words + '[/INST]' }}
  {%- else %}
    {{- ' ' + turn.content | trim + eos_token }}
  {%- endif %}
{% endfor %})",
     "<s>[INST]  Hello\n[/INST] Hi</s>[INST]  Be brief. \n\nWho?\r\n\r\nYou?[/INST]",
     "<s>[INST]  Hello\n[/INST] Hi</s>[INST] Who?\r\n\r\nYou?[/INST]"},
    {"mistral-v3-tekken", "mistral-v1", "<s>", "</s>",
     KVL_RULES_IN_TURN("last") R"(  {% if turn.role == 'user' %}
    {{- '[INST]' + words + '[/INST]' }}
  {%- else %}
    {{- turn.content + eos_token }}
  {%- endif %}
{% endfor %})",
     "<s>[INST] Hello\n[/INST]  Hi\n</s>[INST] Be brief. \n\nWho?\r\n\r\nYou?[/INST]",
     "<s>[INST] Hello\n[/INST]  Hi\n</s>[INST]Who?\r\n\r\nYou?[/INST]"},
    {"mistral-v7", "mistral-v1", "<s>", "</s>",
     R"({{ bos_token }}{% for turn in messages %}{% if turn.role == 'system' %}[SYSTEM_PROMPT] {{ turn.content }}[/SYSTEM_PROMPT]{% elif turn.role == 'user' %}[INST] {{ turn.content }}[/INST]{% else %} {{ turn.content }}{{ eos_token }}{% endif %}{% endfor %})",
     "<s>[SYSTEM_PROMPT]  Be brief. [/SYSTEM_PROMPT][INST]  Hello\n[/INST]   Hi\n"
     "</s>[INST] Who?\r\n\r\nYou?[/INST]",
     "<s>[INST]  Hello\n[/INST]   Hi\n</s>[INST] Who?\r\n\r\nYou?[/INST]"},
    {"phi3-mini", "phi3", "<s>", "<|endoftext|>",
     R"({{ bos_token }}{% for turn in messages %}
  {% if turn.role == 'user' %}
<|user|>
{{ turn.content }}<|end|>
<|assistant|>
  {% elif turn.role == 'assistant' %}
{{ turn.content }}<|end|>
  {% endif %}
{% endfor %})",
     kPhi3MiniWithSystem, kPhi3MiniWithSystem},
    {"phi3-small", "phi3", "<s>", "<|endoftext|>",
     R"({{ bos_token }}{% for turn in messages %}<|{{ turn.role }}|>
{{ turn.content }}<|end|>
{% endfor %}{% if add_generation_prompt %}<|assistant|>
{% endif %})",
     "<s><|system|>\n Be brief. <|end|>\n<|user|>\n Hello\n<|end|>\n<|assistant|>\n  Hi\n"
     "<|end|>\n<|user|>\nWho?\r\n\r\nYou?<|end|>\n<|assistant|>\n",
     kPhi3MiniWithSystem},
    {"phi35", "phi3", "<s>", "<|endoftext|>",
     R"({% for turn in messages %}
  {% if turn.role == 'system' and turn.content %}
<|system|>
{{ turn.content }}<|end|>
  {% elif turn.role == 'user' %}
<|user|>
{{ turn.content }}<|end|>
  {% elif turn.role == 'assistant' %}
<|assistant|>
{{ turn.content }}<|end|>
  {% endif %}
{% endfor %}
{% if add_generation_prompt %}
<|assistant|>
{% endif %})",
     "<|system|>\n Be brief. <|end|>\n<|user|>\n Hello\n<|end|>\n<|assistant|>\n  Hi\n<|end|>\n"
     "<|user|>\nWho?\r\n\r\nYou?<|end|>\n<|assistant|>\n",
     "<|user|>\n Hello\n<|end|>\n<|assistant|>\n  Hi\n<|end|>\n<|user|>\nWho?\r\n\r\n"
     "You?<|end|>\n<|assistant|>\n"},
    {"zephyr", "zephyr", "<s>", "</s>",
     R"({% for turn in messages %}
<|{{ turn.role }}|>
{{ turn.content }}{{ eos_token }}
{% endfor %}
{% if add_generation_prompt %}
<|assistant|>
{% endif %})",
     kZephyrWithSystem, kZephyrWithoutSystem},
    {"zephyr-roles", "zephyr", "<s>", "</s>",
     R"({% for turn in messages %}
  {%- if turn.role == 'system' %}{{ '<|system|>\n' + turn.content + eos_token + '\n' }}{% endif %}
  {%- if turn.role == 'user' %}{{ '<|user|>\n' + turn.content + eos_token + '\n' }}{% endif %}
  {%- if turn.role == 'assistant' %}{{ '<|assistant|>\n' + turn.content + eos_token + '\n' }}{% endif %}
{% endfor %}
{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %})",
     kZephyrWithSystem, kZephyrWithoutSystem},
    {"gemma", "gemma", "<bos>", "<eos>",
     R"({{ bos_token }}{% for turn in messages %}
{% if turn.role == 'system' %}{{ raise_exception('no place for a system message') }}{% endif %}
<start_of_turn>{{ 'model' if turn.role == 'assistant' else 'user' }}
{{ turn.content | trim }}<end_of_turn>
{% endfor %}
{% if add_generation_prompt %}
<start_of_turn>model
{% endif %})",
     "", kGemmaWithoutSystem},
    {"gemma3", "gemma", "<bos>", "<eos>",
     R"({% set turns = messages %}
{% if messages[0].role == 'system' %}
  {% set rules = messages[0].content + '\n\n' %}
  {% set turns = messages[1:] %}
{% endif %}
{{ bos_token }}{% for turn in turns %}
<start_of_turn>{{ 'model' if turn.role == 'assistant' else 'user' }}
{% if loop.first %}{{ rules }}{% endif %}
{{ turn.content | trim }}<end_of_turn>
{% endfor %}
{% if add_generation_prompt %}
<start_of_turn>model
{% endif %})",
     "<bos><start_of_turn>user\n Be brief. \n\nHello<end_of_turn>\n<start_of_turn>model\n"
     "Hi<end_of_turn>\n<start_of_turn>user\nWho?\r\n\r\nYou?<end_of_turn>\n"
     "<start_of_turn>model\n",
     kGemmaWithoutSystem},
    {"falcon-instruct", "falcon", "", "<|endoftext|>",
     R"({% set turns = messages %}
{% if messages[0].role == 'system' %}
  {% set turns = messages[1:] %}
  {{- messages[0].content | trim }}
{%- endif %}
{% for turn in turns %}
  {{- '\n\n' + turn.role | title }}: {{ turn.content | trim | replace('\r\n', '\n') | replace('\n\n', '\n') }}
{%- endfor %}
{% if add_generation_prompt %}{{ '\n\nAssistant:' }}{% endif %})",
     "Be brief.\n\nUser: Hello\n\nAssistant: Hi\n\nUser: Who?\nYou?\n\nAssistant:",
     "\n\nUser: Hello\n\nAssistant: Hi\n\nUser: Who?\nYou?\n\nAssistant:"},
    {"falcon-180b", "falcon", "", "<|endoftext|>",
     R"({% for turn in messages %}
{% if turn.role == 'system' %}System: {% elif turn.role == 'user' %}User: {% else %}Falcon: {% endif %}
{{ turn.content }}
{% endfor %}
{% if add_generation_prompt %}Falcon:{% endif %})",
     "System:  Be brief. \nUser:  Hello\n\nFalcon:   Hi\n\nUser: Who?\r\n\r\nYou?\nFalcon:",
     "User:  Hello\n\nFalcon:   Hi\n\nUser: Who?\r\n\r\nYou?\nFalcon:"},
};

#undef KVL_RULES_IN_TURN

}  // namespace kvlathe
