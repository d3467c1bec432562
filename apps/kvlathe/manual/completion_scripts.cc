#include "kvlathe/manual/completion_scripts.h"

namespace kvlathe {
namespace {

// Bash hands over the line, of which it replaces what stands behind the last of COMP_WORDBREAKS, or
// behind the quote that is open. So the line is split here as the shell would split it, and of
// every candidate only what is replaced is answered.
constexpr std::string_view kBash =
    R"sh(# Completions of kvlathe for bash, as `kvlathe completions bash` prints them.
_kvlathe() {
  local line=${COMP_LINE:0:COMP_POINT} word= quote= inside= base=0 i c
  local -a words=()
  for ((i = 0; i < ${#line}; ++i)); do
    c=${line:i:1}
    if [[ -n $quote ]]; then
      if [[ $c == "$quote" ]]; then quote= base=0; else word+=$c; fi
    elif [[ $c == [\'\"] ]]; then
      quote=$c inside=1 base=${#word}
    elif [[ $c == \\ ]]; then
      ((++i))
      word+=${line:i:1} inside=1
    elif [[ $c == [[:space:]] ]]; then
      [[ -n $inside ]] && words+=("$word")
      word= inside= base=0
    else
      word+=$c inside=1
      [[ $COMP_WORDBREAKS == *"$c"* ]] && base=${#word}
    fi
  done
  COMPREPLY=()
  local answer text models=
  while IFS= read -r answer; do
    text=${answer%%$'\t'*}
    case $text in
      :files) compopt -o default ;;
      :models) models=1 ;;
      *)
        text=${text:base}
        [[ -n $quote ]] || { text=${text//\(/\\(} text=${text//\)/\\)}; }
        COMPREPLY+=("$text")
        ;;
    esac
  done < <("${1/#\~\//$HOME/}" completions -- "${words[@]:1}" "$word" 2>/dev/null)
  if [[ -n $models ]]; then
    compopt -o filenames
    while IFS= read -r answer; do COMPREPLY+=("$answer"); done \
      < <(compgen -d -- "${word:base}"; compgen -f -X '!*.gguf' -- "${word:base}")
  fi
  # What goes on within the word gets no space, nor a closing quote, which a second answer prevents.
  if [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *[=,] ]]; then
    compopt -o nospace
    [[ -n $quote ]] && COMPREPLY+=("${COMPREPLY[0]}...")
  fi
}
complete -F _kvlathe kvlathe
)sh";

constexpr std::string_view kZsh = R"sh(#compdef kvlathe
# Completions of kvlathe for zsh, as `kvlathe completions zsh` prints them.
_kvlathe() {
  local answer text begun files= models=
  local -a whole open
  begun="${(Q)PREFIX}"
  for answer in "${(@f)$(${(Q)words[1]/#\~\//$HOME/} completions -- "${(@Q)words[2,CURRENT-1]}" "$begun" 2>/dev/null)}"; do
    text="${answer%%$'\t'*}"
    case $text in
      '') ;;
      :files) files=1 ;;
      :models) models=1 ;;
      *[=,]) open+=("${text//:/\\:}:${answer#*$'\t'}") ;;
      *) whole+=("${text//:/\\:}:${answer#*$'\t'}") ;;
    esac
  done
  (( ${#whole} )) && _describe kvlathe whole
  (( ${#open} )) && _describe kvlathe open -S ''
  [[ -n $files$models && $begun == --*=* ]] && compset -P '*='
  [[ -n $files ]] && _files
  [[ -n $models ]] && _files -g '*.gguf'
  return 0
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
  _kvlathe "$@"
else
  compdef _kvlathe kvlathe
fi
)sh";

constexpr std::string_view kFish =
    R"sh(# Completions of kvlathe for fish, as `kvlathe completions fish` prints them.
function __kvlathe_complete
    set -l words (commandline -opc)
    set -l program (string replace -r '^~/' "$HOME/" -- $words[1])
    set -e words[1]
    set -l token (commandline -ct | string replace -r '^(-[^=]*=)?[\'"]' '$1' | string unescape)
    for line in ($program completions -- $words "$token" 2>/dev/null)
        set -l option (string match -r '^--[^=]*=' -- $token)
        set -l begun (string replace -r '^--[^=]*=' '' -- $token)
        switch $line
            case :files
                printf "$option%s\n" (__fish_complete_path $begun)
            case :models
                printf "$option%s\n" (__fish_complete_path $begun | string match -r '^[^\t]*(?:/|\.gguf)(?:\t.*)?$')
            case '*'
                echo $line
        end
    end
end
complete -c kvlathe -f -a '(__kvlathe_complete)'
)sh";

}  // namespace

std::vector<std::string> CompletedShells() { return {"bash", "zsh", "fish"}; }

std::string_view CompletionScript(std::string_view shell) {
  if (shell == "bash") return kBash;
  return shell == "zsh" ? kZsh : kFish;
}

}  // namespace kvlathe
