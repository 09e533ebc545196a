#include "client/attnctl/session_commands.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/attnctl/text.h"
#include "client/session.h"

namespace attnd::attnctl {
namespace {

void Print(const std::string& text) { std::fputs(text.c_str(), stdout); }

void Print(const Context& context, const v1::Session& session) {
  if (context.json) return PrintJson(session);
  Print(Describe(session));
}

}  // namespace

absl::Status Run(const Context& context, const CreateCommand& command) {
  if (command.config_file.empty() && command.session.key_dim == 0) {
    return absl::InvalidArgumentError("--key-dim is missing; give the size of a key, or --config");
  }
  const auto config =
      command.config_file.empty() ? ConfigOf(command.session) : ReadConfigFile(command.config_file);
  if (!config.ok()) return config.status();
  const auto client = context.Connect();
  if (!client.ok()) return client.status();
  const auto session = (*client)->CreateSession(*config, command.id);
  if (!session.ok()) return session.status();
  if (!context.json) {
    // The id alone, so that a script can keep it.
    Print(absl::StrCat((*session)->id(), "\n"));
    return absl::OkStatus();
  }
  const auto facts = (*client)->GetSession((*session)->id());
  if (!facts.ok()) return facts.status();
  PrintJson(*facts);
  return absl::OkStatus();
}

absl::Status Run(const Context& context, const GetCommand& command) {
  const auto client = context.Connect();
  if (!client.ok()) return client.status();
  const auto session = (*client)->GetSession(command.id);
  if (!session.ok()) return session.status();
  Print(context, *session);
  return absl::OkStatus();
}

absl::Status Run(const Context& context, const ListCommand& command) {
  const auto labels = ParseLabels(command.labels);
  if (!labels.ok()) return labels.status();
  const auto client = context.Connect();
  if (!client.ok()) return client.status();

  client::ListOptions options;
  options.labels = *labels;
  v1::ListSessionsResponse all;
  do {
    auto page = (*client)->ListSessions(options);
    if (!page.ok()) return page.status();
    options.page_token = page->next_page_token();
    for (v1::Session& session : *page->mutable_sessions()) {
      if (command.limit > 0 && all.sessions_size() >= command.limit) {
        options.page_token.clear();
        break;
      }
      *all.add_sessions() = std::move(session);
    }
  } while (!options.page_token.empty());

  if (context.json) {
    PrintJson(all);
    return absl::OkStatus();
  }
  Print(ListHeading());
  for (const v1::Session& session : all.sessions()) Print(ListLine(session));
  return absl::OkStatus();
}

absl::Status Run(const Context& context, const UpdateCommand& command) {
  client::SessionUpdate update;
  if (!command.time_to_live.empty()) {
    const auto duration = ParsePositiveDuration(command.time_to_live, "--ttl");
    if (!duration.ok()) return duration.status();
    update.time_to_live = *duration;
  }
  if (!command.labels.empty() || command.clear_labels) {
    auto labels = ParseLabels(command.labels);
    if (!labels.ok()) return labels.status();
    update.labels = *std::move(labels);
  }
  if (!update.time_to_live.has_value() && !update.labels.has_value()) {
    return absl::InvalidArgumentError("nothing to change; give --ttl, --label or --clear-labels");
  }
  const auto client = context.Connect();
  if (!client.ok()) return client.status();
  const auto session = (*client)->UpdateSession(command.id, update);
  if (!session.ok()) return session.status();
  Print(context, *session);
  return absl::OkStatus();
}

absl::Status Run(const Context& context, const FlushCommand& command) {
  const auto client = context.Connect();
  if (!client.ok()) return client.status();
  const auto flushed = (*client)->FlushSession(command.id);
  if (!flushed.ok()) return flushed.status();
  if (context.json) {
    PrintJson(*flushed);
    return absl::OkStatus();
  }
  std::vector<std::int64_t> durable;
  for (const v1::LayerPosition& entry : flushed->positions()) {
    durable.push_back(entry.durable_position());
  }
  Print(
      absl::StrCat("flushed ", command.id, ", durable up to position ", Positions(durable), "\n"));
  return absl::OkStatus();
}

absl::Status Run(const Context& context, const DeleteCommand& command) {
  const auto client = context.Connect();
  if (!client.ok()) return client.status();
  for (const std::string& id : command.ids) {
    if (const absl::Status status = (*client)->DeleteSession(id); !status.ok()) return status;
    if (!context.json) Print(absl::StrCat("deleted ", id, "\n"));
  }
  if (context.json) Print("{}\n");
  return absl::OkStatus();
}

absl::Status Run(const Context& context, const InfoCommand&) {
  const auto client = context.Connect();
  if (!client.ok()) return client.status();
  if (context.json) {
    PrintJson((*client)->server_info());
  } else {
    Print(Describe((*client)->server_info()));
  }
  return absl::OkStatus();
}

}  // namespace attnd::attnctl
