#include "tests/process/server_process.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "absl/strings/str_replace.h"

namespace attnd::process {
namespace {

constexpr int kPolls = 1000;
constexpr std::chrono::milliseconds kPoll{10};

std::string TempDirectory() {
  std::string path = std::filesystem::temp_directory_path() / "attnd_process.XXXXXX";
  if (mkdtemp(path.data()) == nullptr) std::abort();
  return path;
}

// The address of a ready file; empty while there is none.
std::string ReadAddress(const std::string& ready_file) {
  const std::string field = "grpc=";
  std::ifstream file(ready_file);
  std::string line;
  std::getline(file, line);
  return line.rfind(field, 0) == 0 ? line.substr(field.size()) : "";
}

}  // namespace

ServerProcess::ServerProcess(std::vector<std::string> command) {
  const std::string directory = TempDirectory();
  const std::string ready_file = directory + "/ready";
  std::vector<char*> arguments;
  for (std::string& word : command) {
    word = absl::StrReplaceAll(word, {{"READY_FILE", ready_file}});
    arguments.push_back(word.data());
  }
  arguments.push_back(nullptr);
  const bool started =
      posix_spawn(&pid_, arguments[0], nullptr, nullptr, arguments.data(), environ) == 0;
  for (int i = 0; started && i < kPolls && address_.empty(); ++i) {
    std::this_thread::sleep_for(kPoll);
    address_ = ReadAddress(ready_file);
  }
  std::filesystem::remove_all(directory);
  if (!address_.empty()) return;
  std::fprintf(stderr, "%s has not started\n", arguments[0]);
  if (started) kill(pid_, SIGKILL);
  std::exit(EXIT_FAILURE);
}

ServerProcess::~ServerProcess() {
  if (pid_ != 0) Stop();
}

void ServerProcess::Kill() {
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = 0;
}

int ServerProcess::Stop() {
  int status = 0;
  kill(pid_, SIGTERM);
  waitpid(pid_, &status, 0);
  pid_ = 0;
  return status;
}

}  // namespace attnd::process
