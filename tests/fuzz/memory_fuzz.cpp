// Work under a limit on memory. An error is a MemoryError or std::bad_alloc; what was there before is as it was, and
// the same work, with memory, gives the bits that it gives when nothing ever failed.
#include "fuzz/kinds.h"
#include "support/limit.h"
#include "support/small_run.h"
#include "support/table_samples.h"
#include "support/temp_folder.h"

#include <sluice/autograd/engine.h>
#include <sluice/core/memory/allocator.h>
#include <sluice/core/text/file.h>
#include <sluice/core/node.h>
#include <sluice/layers/data/csv.h>
#include <sluice/layers/data/loader.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/parallel/collectives.h>
#include <sluice/parallel/communicator.h>

#include <fstream>
#include <optional>

namespace sluice::testing {

namespace {

/// Work that can be repeated; its result as bytes. What `kept` says changes only when the work succeeds.
struct Work {
  std::string name;
  std::function<std::string()> run;
  std::function<std::string()> kept = [] { return std::string(); };
};

/// A call of a layer, and gradients.
Work layer_call(Draw& draw) {
  const auto& table = layer_table();
  const LayerRow& row = table[static_cast<std::size_t>(draw.below(std::ssize(table)))];
  const Json& sample = row.samples[static_cast<std::size_t>(draw.below(std::ssize(row.samples)))];
  const auto s = std::make_shared<LayerSample>(make_sample(row, sample, draw.chance(0.5) ? f32 : f64));
  const int64_t batch = 1 + draw.below(8);
  const int64_t n = 3 + draw.below(68);  // what global positions and tables of positions allow
  const LayerInputs in = s->inputs(batch, n, 1, true);
  auto run = [s, in] {
    const Tensor y = call(*s->layer, in);
    std::string bytes;
    append_bytes(bytes, y);
    const std::vector<Tensor> leaves = s->leaves();
    if (y.requires_grad() && !leaves.empty())
      for (const Tensor& g : grad({sum(square(y))}, leaves, {.allow_unused = true}))
        if (g.defined()) append_bytes(bytes, g);
    return bytes;
  };
  return {str(s->text, ", batch ", batch, ", n ", n), run, [s] {
            std::string bytes;
            for (const Tensor& w : s->leaves()) append_bytes(bytes, w);
            return bytes;
          }};
}

/// Two steps of an optimiser from one checkpoint, a load and a save among them.
Work training(const std::string& path) {
  const auto run = std::make_shared<SmallRun>(2);
  SmallRun(1).save(path);
  return {"training", [run, path] {
            run->load(path);
            run->step();
            run->save(path + "2");
            run->step();
            run->load(path + "2");
            return run->bytes() + read_file(path + "2");
          }};
}
Work loading(const std::string& path) {
  const auto run = std::make_shared<SmallRun>(2);
  SmallRun(1).save(path);
  return {"load_checkpoint", [run, path] { return run->load(path), run->bytes(); }, [run] { return run->bytes(); }};
}
Work saving(const std::string& path) {
  const auto run = std::make_shared<SmallRun>(3);
  SmallRun(1).save(path);
  return {"save_checkpoint", [run, path] { return run->save(path), read_file(path); },
          [path] { return read_file(path); }};
}
Work table(const std::string& path) {
  std::string csv = "a,b\n";
  for (int i = 0; i < 3000; ++i) csv += str(i, ",", 0.5 * i, "\n");
  std::ofstream(path, std::ios::binary) << csv;
  return {"read_csv", [path] {
            std::string bytes;
            append_bytes(bytes, read_csv(path).columns());
            return bytes;
          }};
}
/// An epoch of batches that two threads make.
Work batches(const std::string&) {
  return {"Loader", [] {
            std::string bytes;
            Loader loader({.rows = 40, .batch = 8, .seed = 3, .threads = 2}, [](const Tensor& rows, Rng& rng) {
              return to(unsqueeze(rows, 1), f32) * normal({8, 64}, 0, 1, rng);
            });
            for (const Tensor& batch : loader) append_bytes(bytes, batch);
            return bytes;
          }};
}
/// A sum over three ranks.
Work ranks(const std::string&) {
  return {"run_ranks", [] {
            std::array<std::string, 3> bytes;
            run_ranks(3, [&](const Communicator& all) {
              const Tensor x = full({500}, 0.1 * all.rank());
              append_bytes(bytes[static_cast<std::size_t>(all.rank())], all_reduce(x, all));
            });
            return bytes[0] + bytes[1] + bytes[2];
          }};
}

}  // namespace

void draw_memory_limit(Draw& draw, Report& report) {
  static const TempFolder folder;
  const std::string path = folder / "file";
  constexpr Work (*kSome[])(const std::string&) = {training, loading, saving, table, batches, ranks};
  const Work work = draw.chance(0.4) ? kSome[draw.below(6)](path) : layer_call(draw);
  int64_t limit = int64_t{1} << (10 + draw.below(14));
  limit += draw.below(limit);
  const std::string text = str(work.name, ", ", limit, " bytes: ");
  report.at(text);
  ++report.counts["limits"];
  std::string want;
  if (draw.chance(0.5)) want = work.run();  // else the limit meets what is made at the first use
  const std::string before = work.kept();
  std::string got;
  bool failed = false;
  release_cached_memory();
  {
    std::optional<MemoryLimit> less(limit);
    try {
      got = work.run();
    } catch (const MemoryError&) { failed = true; } catch (const std::bad_alloc&) {
      failed = true;
    } catch (const Error& e) {  // a file's
      less.reset();
      failed = true;
      if (std::string_view(e.what()).find("memory") == std::string_view::npos) report.wrong(draw, text + e.what());
    }
  }
  report.counts["refused"] += failed;
  if (failed && work.kept() != before) report.wrong(draw, text + "it failed and changed something");
  if (want.empty()) want = work.run();
  if (!failed && got != want) report.wrong(draw, text + "with less memory the result is another");
  if (work.run() != want) report.wrong(draw, text + "afterwards the result is another");
}

}  // namespace sluice::testing
