#include "client/attnctl/command_line.h"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "client/attnctl/bench/bench_command.h"
#include "client/attnctl/feature_map_command.h"
#include "client/attnctl/health_command.h"
#include "client/attnctl/session_commands.h"
#include "client/attnctl/token_commands.h"

namespace attnd::attnctl {
namespace {

// The parser, and what it parses into.
struct Tree {
  Tree();

  CLI::App app{"attnctl: sessions, tokens and queries of an attnd server", "attnctl"};
  CommandLine line;
  std::string timeout;
  std::string shell;
  CreateCommand create;
  GetCommand get;
  ListCommand list;
  UpdateCommand update;
  FlushCommand flush;
  DeleteCommand remove;
  InfoCommand info;
  HealthCommand health;
  AppendCommand append;
  AttendCommand attend;
  StepCommand step;
  PutFeatureMapCommand put_feature_map;
  BenchCommand bench;

 private:
  template <class Command>
  CLI::App* Add(const char* name, const char* description, const Command& command) {
    CLI::App* sub = app.add_subcommand(name, description);
    sub->callback([this, name, &command] {
      line.name = name;
      line.run = [&command](const Context& context) { return Run(context, command); };
    });
    return sub;
  }
  void AddSessionCommands();
  void AddTokenCommands();
  void AddPutFeatureMap();
  void AddBench();
  void AddCompletion();
};

// `otherwise`: what 0 means.
void AddAccuracy(CLI::App* sub, double* target_error, std::int64_t* max_keys,
                 const std::string& otherwise) {
  sub->add_option(
      "--target-error", *target_error,
      absl::StrCat("kde: error to aim at, relative to the values' spread; 0: ", otherwise));
  sub->add_option("--max-keys", *max_keys,
                  absl::StrCat("kde: keys to evaluate per query at most; 0: ", otherwise));
}

// `window`: the names of the sliding window's flag; the one of messages under way is --window too.
void AddSessionFlags(CLI::App* sub, SessionFlags* flags, const char* window) {
  sub->add_option("--engine", flags->engine, "exact (softmax), linear, or kde (softmax, estimated)")
      ->check(CLI::IsMember({"exact", "linear", "kde"}))
      ->capture_default_str();
  sub->add_option("--feature-map", flags->feature_map, "feature map of a linear engine")
      ->check(CLI::IsMember(FeatureMapNames()))
      ->capture_default_str();
  sub->add_option("--epsilon", flags->epsilon, "relu: added to every feature");
  sub->add_option("--nu", flags->nu, "dpfp: number of rolls");
  sub->add_option("--horizon", flags->horizon, "cosformer: distance at which weights reach 0");
  sub->add_option("--features", flags->features,
                  "favor_*, random_fourier: random projections; 0: the default");
  sub->add_option("--feature-seed", flags->seed,
                  "favor_*, random_fourier: seed of the projections");
  sub->add_option("--sharpness", flags->sharpness, "favor_sharp: A, below 1/8");
  sub->add_option("--key-scales", flags->key_scales,
                  "favor_sharp: psi, one number per component of a key")
      ->delimiter(',');
  sub->add_option("--weights", flags->weights,
                  "learned: SHA-256 of the map, as put-feature-map prints it");
  sub->add_flag("--unnormalized", flags->unnormalized, "linear: no division by the denominator");
  sub->add_option("--decay", flags->decay, "linear: how sums fade")
      ->check(CLI::IsMember({"none", "constant", "per_token", "per_feature"}))
      ->capture_default_str();
  sub->add_option("--log-decays", flags->log_decays,
                  "constant decays: natural logarithms, one per kv head or per kv head and feature")
      ->delimiter(',');
  sub->add_flag("--delta", flags->delta, "linear: tokens correct what their keys held");
  sub->add_flag("--read-first", flags->read_first,
                "linear: queries read before their token is written");
  sub->add_option("--bonus", flags->bonus,
                  "read-first: what the token itself weighs, per kv head and feature")
      ->delimiter(',');
  sub->add_option("--guard", flags->guard, "linear: what to do about a small denominator")
      ->check(CLI::IsMember({"strict", "add_epsilon", "clamp"}))
      ->capture_default_str();
  sub->add_option("--guard-epsilon", flags->guard_epsilon, "the guard's epsilon; 0: the default");
  sub->add_option("--storage", flags->storage, "exact: type in which keys and values are kept")
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->capture_default_str();
  sub->add_option("--mode", flags->mode, "kde: how it estimates")
      ->check(CLI::IsMember(KdeModeNames()))
      ->capture_default_str();
  AddAccuracy(sub, &flags->target_error, &flags->max_keys, "the server's default");
  sub->add_option("--session-seed", flags->session_seed, "kde: seed of what is drawn at random");
  sub->add_option("--layers", flags->layers, "number of layers")->capture_default_str();
  sub->add_option("--kv-heads", flags->kv_heads, "heads of keys and values")->capture_default_str();
  sub->add_option("--query-heads", flags->query_heads, "heads of queries; 0: as many as kv heads");
  sub->add_option("--key-dim", flags->key_dim, "size of a key");
  sub->add_option("--value-dim", flags->value_dim, "size of a value; 0: as a key");
  sub->add_option("--scale", flags->scale,
                  "factor on queries; default 1/sqrt(key-dim) for exact and kde, 1 for linear");
  sub->add_option(window, flags->window,
                  "newest tokens that a query sees; linear: a multiple of 64; 0: all");
  sub->add_option("--durability", flags->durability,
                  "what survives the server's end: nothing, what was checkpointed (see flush), or "
                  "every acknowledged token")
      ->check(CLI::IsMember(DurabilityNames()))
      ->capture_default_str();
  sub->add_option("--ttl", flags->time_to_live, "idle time after which it expires, such as 24h");
  sub->add_option("--label", flags->labels, "KEY=VALUE; may be repeated")->allow_extra_args(false);
}

Tree::Tree() {
  app.require_subcommand(1);
  app.fallthrough();
  app.add_option("--server", line.context.server, "HOST:PORT of the server")
      ->envname("ATTND_SERVER")
      ->take_last()
      ->capture_default_str();
  app.add_option("--timeout", timeout, "time for the call, retries included, such as 30s");
  app.add_flag("--json", line.context.json, "print JSON");
  AddSessionCommands();
  AddTokenCommands();
  AddPutFeatureMap();
  AddBench();
  AddCompletion();
}

void Tree::AddSessionCommands() {
  CLI::App* sub = Add("create", "Create a session and print its id", create);
  AddSessionFlags(sub, &create.session, "--window,--window-tokens");
  sub->add_option("--config", create.config_file,
                  "SessionConfig as JSON, instead of the flags; for groups of unlike layers")
      ->check(CLI::ExistingFile);
  sub->add_option("--id", create.id, "id of the session; default: a new one");

  sub = Add("get", "Show a session", get);
  sub->add_option("id", get.id, "the session")->required();

  sub = Add("list", "List sessions", list);
  sub->add_option("--label", list.labels, "only with this KEY=VALUE; may be repeated")
      ->allow_extra_args(false);
  sub->add_option("--limit", list.limit, "at most so many; 0: all")->capture_default_str();

  sub = Add("update", "Change a session's time-to-live or labels", update);
  sub->add_option("id", update.id, "the session")->required();
  sub->add_option("--ttl", update.time_to_live, "idle time after which it expires, such as 24h");
  sub->add_option("--label", update.labels, "KEY=VALUE, replaces all labels; may be repeated")
      ->allow_extra_args(false);
  sub->add_flag("--clear-labels", update.clear_labels, "remove all labels");

  sub = Add("flush", "Write a session to the server's store and wait until it is durable", flush);
  sub->add_option("id", flush.id, "the session")->required();

  sub = Add("delete", "Delete sessions", remove);
  sub->add_option("id", remove.ids, "the sessions")->required();

  Add("info", "Show the server's version, engines and limits", info);
  Add("health", "Ask once whether the server wants traffic; exit status 1: it does not", health);
}

void Tree::AddTokenCommands() {
  const auto file = [](CLI::App* sub, const char* name, std::string* to, const char* description) {
    return sub->add_option(name, *to, description)->check(CLI::ExistingFile);
  };
  const auto out = [](CLI::App* sub, std::string* to, std::string* dtype) {
    sub->add_option("--out", *to, "file for the outputs, (n, query heads, d)")
        ->required()
        ->type_name("PATH");
    sub->add_option("--dtype", *dtype, "type of the outputs")
        ->check(CLI::IsMember({"f32", "f16"}))
        ->capture_default_str();
  };

  const auto position = [](CLI::App* sub, std::optional<std::int64_t>* to) {
    sub->add_option("--position", *to,
                    "position of the first token, which makes it safe to run the command again; "
                    "default: at the end");
  };

  const auto gates = [&](CLI::App* sub, GateFiles* to) {
    file(sub, "--log-decays", &to->log_decays, "decays per_token, (n, heads, 1), or per_feature");
    file(sub, "--rates", &to->rates, "delta: rates, (n, heads, 1)");
  };

  const auto estimates = [](CLI::App* sub, EstimateFlags* to) {
    AddAccuracy(sub, &to->target_error, &to->max_keys, "the session's");
    sub->add_flag("--estimates", to->print, "kde: print how good the answers are");
    sub->add_option("--errors", to->errors,
                    "kde: file for the stated error of each output, (n, query heads)")
        ->type_name("PATH");
  };

  CLI::App* sub = Add("append", "Append tokens from .npy files", append);
  sub->add_option("id", append.id, "the session")->required();
  file(sub, "--keys", &append.keys, "keys, (n, d) or (n, heads, d), f32 or f16")->required();
  file(sub, "--values", &append.values, "values, likewise")->required();
  file(sub, "--mask", &append.mask, "one byte or bool per token: 0 leaves it out");
  gates(sub, &append.gates);
  sub->add_option("--layer", append.layer, "the layer")->capture_default_str();
  position(sub, &append.position);

  sub = Add("attend", "Answer queries from a .npy file", attend);
  sub->add_option("id", attend.id, "the session")->required();
  file(sub, "--queries", &attend.queries, "queries, (n, d) or (n, query heads, d)")->required();
  out(sub, &attend.out, &attend.dtype);
  sub->add_option("--layer", attend.layer, "the layer")->capture_default_str();
  sub->add_option("--min-position", attend.min_position, "refuse below so many tokens");
  sub->add_flag("--wait", attend.wait, "wait for --min-position instead");
  sub->add_option("--query-position", attend.query_position,
                  "cosformer, kde: where the first query stands; the others follow it");
  sub->add_option("--top-k", attend.top_k, "exact, kde: print the positions of largest weight");
  estimates(sub, &attend.estimates);

  sub = Add("step", "Append tokens and answer their queries causally", step);
  sub->add_option("id", step.id, "the session")->required();
  file(sub, "--keys", &step.keys, "keys, (n, d) or (n, heads, d), f32 or f16")->required();
  file(sub, "--values", &step.values, "values, likewise")->required();
  file(sub, "--queries", &step.queries, "queries of the same tokens")->required();
  file(sub, "--mask", &step.mask, "one byte or bool per token: 0 leaves it out");
  gates(sub, &step.gates);
  out(sub, &step.out, &step.dtype);
  sub->add_option("--layer", step.layer, "the layer")->capture_default_str();
  position(sub, &step.position);
  estimates(sub, &step.estimates);
}

void Tree::AddPutFeatureMap() {
  PutFeatureMapCommand& put = put_feature_map;
  CLI::App* sub = Add("put-feature-map", "Upload a learned feature map and print its SHA-256", put);
  const auto file = [sub](const char* name, std::string* to, const char* description) {
    return sub->add_option(name, *to, description)->check(CLI::ExistingFile);
  };
  sub->add_option("--activation", put.activation, "what is applied to W x + b")
      ->check(CLI::IsMember(ActivationNames()))
      ->capture_default_str();
  file("--key-weights", &put.key_weights, "W of keys, (m, d) or (heads, m, d)")->required();
  file("--key-bias", &put.key_bias, "b of keys, (m) or (heads, m)");
  file("--query-weights", &put.query_weights, "W of queries, (m, d) or (query heads, m, d)")
      ->required();
  file("--query-bias", &put.query_bias, "b of queries, (m) or (query heads, m)");
  sub->add_option("--id", put.id, "a session that will use it, by which proxies route");
}

void Tree::AddBench() {
  CLI::App* sub = Add("bench", "Put load on a server and measure its latency", bench);
  bench.session.key_dim = 64;
  AddSessionFlags(sub, &bench.session, "--window-tokens");
  sub->add_option("--call", bench.call, "what to call")
      ->check(CLI::IsMember({"attend", "append", "step"}))
      ->capture_default_str();
  sub->add_option("--transport", bench.transport, "one call each, or messages of a stream")
      ->check(CLI::IsMember({"unary", "stream"}))
      ->capture_default_str();
  sub->add_option("--sessions", bench.sessions, "sessions")->capture_default_str();
  sub->add_option("--concurrency", bench.concurrency, "workers")->capture_default_str();
  sub->add_option("--tokens", bench.tokens, "tokens in each session beforehand")
      ->capture_default_str();
  sub->add_option("--batch", bench.batch, "tokens or queries per call")->capture_default_str();
  sub->add_option("--window", bench.window, "unanswered messages per stream")
      ->capture_default_str();
  sub->add_option("--rate", bench.rate,
                  "calls per second over all workers (open loop: latency counts from the moment a "
                  "call was due); 0: closed loop")
      ->capture_default_str();
  sub->add_option("--duration", bench.duration, "length of the test; 0: until --count")
      ->capture_default_str();
  sub->add_option("--count", bench.count, "calls in all; 0: until --duration")
      ->capture_default_str();
  sub->add_option("--warmup", bench.warmup, "calls made before, not counted; 0: none")
      ->capture_default_str();
  sub->add_option("--seed", bench.seed, "seed of the random tokens")->capture_default_str();
}

void Tree::AddCompletion() {
  CLI::App* sub = app.add_subcommand(
      "completion", "Print a completion script: eval \"$(attnctl completion bash)\"");
  sub->add_option("shell", shell, "the shell")->required()->check(CLI::IsMember({"bash", "zsh"}));
  sub->callback([this] {
    line.name = "completion";
    line.run = [this](const Context&) {
      const CommandSpec spec = DescribeCommandLine();
      const std::string script = shell == "zsh" ? ZshCompletion(spec) : BashCompletion(spec);
      std::fputs(script.c_str(), stdout);
      return absl::OkStatus();
    };
  });
}

OptionSpec Describe(const CLI::Option& option) {
  OptionSpec spec;
  for (const std::string& name : option.get_snames()) spec.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) spec.names.push_back("--" + name);
  spec.description = option.get_description();
  spec.takes_value = option.get_items_expected_max() > 0;
  // "TEXT:FILE", "PATH" or "TEXT:{exact,linear}".
  const std::string type = option.get_type_name();
  spec.takes_file = type.find("FILE") != std::string::npos || type == "PATH";
  const std::size_t open = type.find('{');
  const std::size_t close = type.find('}');
  if (open != std::string::npos && close != std::string::npos) {
    spec.choices = absl::StrSplit(type.substr(open + 1, close - open - 1), ',');
  }
  return spec;
}

CommandSpec Describe(const CLI::App& app) {
  CommandSpec spec;
  spec.name = app.get_name();
  spec.description = app.get_description();
  for (const CLI::Option* option : app.get_options()) spec.options.push_back(Describe(*option));
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
    spec.commands.push_back(Describe(*sub));
  }
  return spec;
}

}  // namespace

CommandLine ParseCommandLine(int argc, const char* const* argv) {
  // Kept by the command that runs: its options live in the tree.
  const auto tree = std::make_shared<Tree>();
  CommandLine& line = tree->line;
  std::string problem;
  try {
    tree->app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    line.exit_code = tree->app.exit(help);
    return line;
  } catch (const CLI::Error& error) {
    problem = error.what();
  }
  if (problem.empty() && !tree->timeout.empty()) {
    const auto timeout = ParsePositiveDuration(tree->timeout, "--timeout");
    if (timeout.ok()) {
      line.context.timeout = *timeout;
    } else {
      problem = std::string(timeout.status().message());
    }
  }
  if (!problem.empty()) {
    const auto given = tree->app.get_subcommands();
    std::replace(problem.begin(), problem.end(), '\n', ' ');
    absl::FPrintF(stderr, "attnctl: %s; see attnctl %s--help\n", problem,
                  given.empty() ? "" : given[0]->get_name() + " ");
    line.exit_code = 2;
    return line;
  }
  CommandLine result = line;
  result.run = [tree](const Context& context) { return tree->line.run(context); };
  return result;
}

CommandSpec DescribeCommandLine() { return Describe(Tree().app); }

}  // namespace attnd::attnctl
