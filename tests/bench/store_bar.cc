// What the store's interface costs beside RocksDB itself: both append the same values with the same
// syncs to directories of their own on one disk, in turns, since a disk's speed drifts.
#include <rocksdb/db.h>
#include <rocksdb/write_batch.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/store/rocksdb_options.h"
#include "server/store/rocksdb_store.h"
#include "tests/bench/bars.h"

namespace attnd::bench {
namespace {

constexpr double kTarget = 0.8;
constexpr double kMegabyte = 1e6;

struct Load {
  const char* name;
  std::size_t value_bytes;
  int appends;  // of a turn
  bool sync;
};
constexpr Load kLoads[] = {
    {"4KB_sync", 4096, 400, true},    {"4KB_nosync", 4096, 4000, false},
    {"64KB_sync", 65536, 200, true},  {"64KB_nosync", 65536, 400, false},
    {"1MB_sync", 1U << 20, 32, true}, {"1MB_nosync", 1U << 20, 32, false},
};

void Check(bool ok, const std::string& what) {
  if (ok) return;
  std::fprintf(stderr, "store bench: %s\n", what.c_str());
  std::abort();
}

std::string NewDirectory(const std::string& name) {
  const std::string directory = std::string(ATTND_STORE_DIRECTORY) + "/" + name;
  std::filesystem::remove_all(directory);
  std::filesystem::create_directories(directory);
  return directory;
}

// Bytes a second of appending values under new keys.
template <typename Append>
double Throughput(const Load& load, const std::string& bytes, std::uint64_t& next_key,
                  const Append& append) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < load.appends; ++i) {
    // The value is a new string for both, as a record that has just been made is.
    const std::uint64_t number = next_key++;
    append(absl::StrCat("log/", absl::Hex(number, absl::kZeroPad16)),
           bytes.substr(number % 64, load.value_bytes));
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  return static_cast<double>(load.value_bytes) * load.appends / seconds.count();
}

Bar MeasureLoad(const Load& load, const BenchOptions& options) {
  std::mt19937_64 random(1);
  std::string bytes(load.value_bytes + 64, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());

  rocksdb::DB* opened = nullptr;
  const auto status =
      rocksdb::DB::Open(server::MakeRocksDbOptions(), NewDirectory("rocksdb"), &opened);
  Check(status.ok(), status.ToString());
  const std::unique_ptr<rocksdb::DB> raw(opened);
  auto store = server::RocksDbStore::Open({.directory = NewDirectory("store")});
  Check(store.ok(), store.status().ToString());
  rocksdb::WriteOptions write;
  write.sync = load.sync;
  const auto append_raw = [&](const std::string& key, const std::string& value) {
    rocksdb::WriteBatch batch;
    Check(batch.Put(key, value).ok() && raw->Write(write, &batch).ok(), "RocksDB fails");
  };
  const auto append_store = [&](std::string key, std::string value) {
    server::WriteBatch batch;
    batch.Put(std::move(key), std::move(value));
    Check((*store)->Apply(batch, load.sync ? server::Sync::kNow : server::Sync::kLater).ok(),
          "the store fails");
  };

  std::vector<double> ratios;
  std::vector<double> raw_rates;
  std::vector<double> store_rates;
  std::uint64_t raw_key = 0;
  std::uint64_t store_key = 0;
  for (int turn = -1; turn < 2 * options.repetitions; ++turn) {
    const double raw_rate = Throughput(load, bytes, raw_key, append_raw);
    const double store_rate = Throughput(load, bytes, store_key, append_store);
    if (turn < 0) continue;  // warms up
    ratios.push_back(store_rate / raw_rate);
    raw_rates.push_back(raw_rate);
    store_rates.push_back(store_rate);
  }
  std::printf("append of %s: store %.1f MB/s, RocksDB %.1f MB/s, ratio %.3f\n", load.name,
              Median(store_rates) / kMegabyte, Median(raw_rates) / kMegabyte, Median(ratios));
  return {absl::StrCat("store_append_of_rocksdb_", load.name), Median(ratios), kTarget, false};
}

}  // namespace

std::vector<Bar> StoreBars(const BenchOptions& options) {
  std::vector<Bar> bars;
  for (const Load& load : kLoads) bars.push_back(MeasureLoad(load, options));
  std::filesystem::remove_all(ATTND_STORE_DIRECTORY);
  return bars;
}

}  // namespace attnd::bench
