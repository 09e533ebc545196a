#include "server/option_table.h"

#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/time/time.h"
#include "server/option_types.h"
#include "server/options.h"

namespace attnd::server {
namespace {

// Between the type of a flag and that of its member in Options.
template <typename Flag, typename Member>
Flag ToFlag(const Member& member) {
  if constexpr (std::is_same_v<Flag, ByteSize>) {
    return ByteSize{member};
  } else {
    return member;
  }
}

// `value` is within its bounds, which fit the member.
template <typename Flag, typename Member>
void ToMember(const Flag& value, Member& member) {
  if constexpr (std::is_same_v<Flag, ByteSize>) {
    member = value.bytes;
  } else if constexpr (std::is_same_v<Flag, std::int64_t>) {
    member = static_cast<Member>(value);
  } else {
    member = value;
  }
}

}  // namespace
}  // namespace attnd::server

// Abseil wants flags in the global namespace.
using attnd::server::ByteSize;
using attnd::server::FsyncPolicy;
using attnd::server::LogFormat;
using attnd::server::LogLevel;
#define OPTION(group, type, name, bounds, help) \
  ABSL_FLAG(type, name, attnd::server::ToFlag<type>(attnd::server::Options{}.name), help);
#include "server/option_list.inc"
#undef OPTION

namespace attnd::server {
namespace {

template <typename Flag, typename Bounds, typename Member>
OptionRow MakeRow(const char* group, const char* name, const char* help, absl::Flag<Flag>& flag,
                  const Bounds& bounds, Member Options::*member) {
  absl::CommandLineFlag* const handle = absl::FindCommandLineFlag(name);
  OptionRow row;
  row.group = group;
  row.name = name;
  row.help = help;
  row.expected = Expected(Flag{});
  row.default_value = handle->DefaultValue();
  row.is_bool = std::is_same_v<Flag, bool>;
  row.is_text = std::is_same_v<Flag, std::string>;
  row.parse = [handle](const std::string& text) {
    std::string error;
    return handle->ParseFrom(text, &error);
  };
  row.value = [handle] { return handle->CurrentValue(); };
  row.apply = [&flag, bounds, member](Options& options) {
    const Flag value = absl::GetFlag(flag);
    std::string refusal = bounds.Refuse(value);
    if (refusal.empty()) {
      ToMember(value, options.*member);
    }
    return refusal;
  };
  return row;
}

}  // namespace

const std::vector<OptionRow>& OptionTable() {
  static const auto* const table = new std::vector<OptionRow>{
#define OPTION(group, type, name, bounds, help) \
  MakeRow<type>(group, #name, help, FLAGS_##name, bounds, &Options::name),
#include "server/option_list.inc"
#undef OPTION
  };
  return *table;
}

const OptionRow* FindOption(const std::string& name) {
  for (const OptionRow& row : OptionTable()) {
    if (row.name == name) {
      return &row;
    }
  }
  return nullptr;
}

}  // namespace attnd::server
