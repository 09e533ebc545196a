#include "client/attnctl/completion.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"

namespace attnd::attnctl {
namespace {

std::vector<std::string> Names(const std::vector<OptionSpec>& options) {
  std::vector<std::string> names;
  for (const OptionSpec& option : options) {
    names.insert(names.end(), option.names.begin(), option.names.end());
  }
  return names;
}

// Values without a name, such as the shell of `completion`.
std::vector<std::string> PositionalChoices(const CommandSpec& command) {
  std::vector<std::string> choices;
  for (const OptionSpec& option : command.options) {
    if (option.names.empty()) {
      choices.insert(choices.end(), option.choices.begin(), option.choices.end());
    }
  }
  return choices;
}

// `case` arms that complete the value of the option before the cursor.
std::string BashValueArms(const CommandSpec& command) {
  std::string arms;
  for (const OptionSpec& option : command.options) {
    if (option.names.empty() || !option.takes_value) continue;
    std::string action = "return";
    if (option.takes_file) action = "compopt -o default; return";
    if (!option.choices.empty()) {
      action = absl::StrCat("COMPREPLY=($(compgen -W '", absl::StrJoin(option.choices, " "),
                            "' -- \"$cur\")); return");
    }
    std::vector<std::string> patterns;
    for (const std::string& name : option.names) {
      patterns.push_back(absl::StrCat("\"", command.name, " ", name, "\""));
    }
    absl::StrAppend(&arms, "    ", absl::StrJoin(patterns, "|"), ") ", action, " ;;\n");
  }
  return arms;
}

std::string ZshQuoted(const std::string& text) {
  return absl::StrReplaceAll(text, {{"'", "'\\''"}, {"[", "("}, {"]", ")"}, {":", " -"}});
}

std::string ZshOptions(const CommandSpec& command) {
  std::string lines;
  for (const OptionSpec& option : command.options) {
    std::string value;
    if (option.takes_value) value = option.takes_file ? ":file:_files" : ":value: ";
    if (!option.choices.empty()) {
      value = absl::StrCat(":value:(", absl::StrJoin(option.choices, " "), ")");
    }
    if (option.names.empty()) {
      absl::StrAppend(&lines, " \\\n        '*", value.empty() ? ":value: " : value, "'");
    }
    for (const std::string& name : option.names) {
      absl::StrAppend(&lines, " \\\n        '", name, "[", ZshQuoted(option.description), "]",
                      value, "'");
    }
  }
  return lines;
}

}  // namespace

std::string BashCompletion(const CommandSpec& program) {
  std::vector<std::string> commands;
  std::string value_arms = BashValueArms({"*", "", program.options, {}});
  // The pattern of an option of the program itself matches behind every command.
  value_arms = absl::StrReplaceAll(value_arms, {{"\"* ", "*\" "}});
  std::string word_arms;
  for (const CommandSpec& command : program.commands) {
    commands.push_back(command.name);
    absl::StrAppend(&value_arms, BashValueArms(command));
    std::vector<std::string> words = Names(command.options);
    const std::vector<std::string> positional = PositionalChoices(command);
    words.insert(words.end(), positional.begin(), positional.end());
    absl::StrAppend(&word_arms, "    ", command.name, ") words='", absl::StrJoin(words, " "),
                    "' ;;\n");
  }
  const std::string globals = absl::StrJoin(Names(program.options), " ");
  return absl::StrCat("# bash completion of ", program.name, "\n",  //
                      "_", program.name, "() {\n",
                      "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}\n"
                      "  local command='' word words=''\n"
                      "  COMPREPLY=()\n"
                      "  for word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n"
                      "    case \"$word\" in\n      ",
                      absl::StrJoin(commands, "|"), ") command=$word; break ;;\n    esac\n  done\n",
                      "  case \"$command $prev\" in\n", value_arms, "  esac\n",
                      "  case \"$command\" in\n    '') words='", absl::StrJoin(commands, " "),
                      "' ;;\n", word_arms, "  esac\n", "  COMPREPLY=($(compgen -W \"$words ",
                      globals, "\" -- \"$cur\"))\n}\n", "complete -F _", program.name, " ",
                      program.name, "\n");
}

std::string ZshCompletion(const CommandSpec& program) {
  std::string commands;
  std::string arms;
  for (const CommandSpec& command : program.commands) {
    absl::StrAppend(&commands, "    '", command.name, ":", ZshQuoted(command.description), "'\n");
    absl::StrAppend(&arms, "      ", command.name, ")\n        _arguments", ZshOptions(command),
                    " ;;\n");
  }
  return absl::StrCat("#compdef ", program.name, "\n_", program.name,
                      "() {\n  local line state\n  local -a commands=(\n", commands,
                      "  )\n  _arguments -C", ZshOptions(program),
                      " \\\n        '1:command:->command' '*::argument:->argument'\n"
                      "  case $state in\n    command) _describe command commands ;;\n"
                      "    argument)\n      case $line[1] in\n",
                      arms, "      esac ;;\n  esac\n}\ncompdef _", program.name, " ", program.name,
                      "\n");
}

}  // namespace attnd::attnctl
