#include <sluice/layers/train/progress.h>

#include <sluice/core/error.h>
#include <sluice/core/file.h>
#include <sluice/layers/train/log.h>
#include "support/catch.h"
#include "support/temp_folder.h"

#include <cmath>

using namespace sluice;
using sluice::testing::TempFolder;
using Catch::Contains;

namespace {

/// What `use` writes to the stream it is given.
template <class F>
std::string written(F&& use) {
  std::FILE* file = std::tmpfile();
  REQUIRE(file);
  use(file);
  std::string text(static_cast<std::size_t>(std::ftell(file)), '\0');
  std::rewind(file);
  CHECK(std::fread(text.data(), 1, text.size(), file) == text.size());
  std::fclose(file);
  return text;
}

/// The steps of a run of `steps`, from step `from` on, at which milestone(parts) is true.
std::vector<int64_t> milestones(int64_t steps, int64_t parts, int64_t from = 0) {
  std::vector<int64_t> at;
  written([&](std::FILE* out) {
    Progress progress({.steps = steps, .done = static_cast<double>(from) / static_cast<double>(steps), .out = out});
    CHECK(!progress.milestone(parts));
    for (int64_t step = from + 1; step <= steps; ++step) {
      progress.update(step, {});
      if (progress.milestone(parts)) at.push_back(step);
    }
  });
  return at;
}

}  // namespace

TEST_CASE("progress: milestones lie evenly, end with the work, and survive a resume", "[progress]") {
  CHECK(milestones(100, 4) == std::vector<int64_t>{25, 50, 75, 100});
  CHECK(milestones(10, 3) == std::vector<int64_t>{4, 7, 10});
  CHECK(milestones(3, 10) == std::vector<int64_t>{1, 2, 3});
  CHECK(milestones(1, 5) == std::vector<int64_t>{1});
  for (const int64_t steps : {7, 97, 300})
    for (const int64_t parts : {1, 6, 30}) {
      const auto whole = milestones(steps, parts);
      CHECK(static_cast<int64_t>(whole.size()) == std::min(steps, parts));
      CHECK(whole.back() == steps);
      for (const int64_t cut : {1, 5, 6}) {
        std::vector<int64_t> later;
        for (const int64_t step : whole)
          if (step > cut) later.push_back(step);
        CHECK(milestones(steps, parts, cut) == later);
      }
    }
  written([](std::FILE* out) {  // by time: shares that jump over several are met once
    Progress progress({.out = out});
    progress.update(1, {}, 0.05);
    CHECK(!progress.milestone(10));
    progress.update(2, {}, 0.35);
    CHECK(progress.milestone(10));
    progress.update(3, {}, 0.39);
    CHECK(!progress.milestone(10));
    progress.update(4, {}, 1.7);
    CHECK(progress.milestone(10));
    progress.update(5, {});  // unknown
    CHECK(!progress.milestone(10));
  });
}

TEST_CASE("progress: lines of a log", "[progress]") {
  const std::string text = written([](std::FILE* out) {
    Progress progress({.steps = 4, .out = out});
    progress.update(1, {{"loss", 2.71828}, {"lr", 3e-4}, {"tok/s", 12345}});
    progress.update(2, {{"loss", 1.5}});
    progress.note("half");
    progress.update(3, {{"loss", 1.25}, {"percent", 97.531}, {"zero", 0}});
    progress.finish();
    progress.update(4, {{"loss", 1}});
  });
  CHECK_THAT(text, Contains(" 25% step 1/4  loss 2.718  lr 3.0e-04  tok/s 12.3k  ") && Contains(" MiB (peak ") && Contains("\nhalf\n"));
  CHECK_THAT(text, Contains(" 75% step 3/4  loss 1.250  percent 97.53  zero 0.0000  "));
  CHECK_THAT(text, !Contains("step 2/4") && !Contains("step 4/4") && !Contains("\r"));
  CHECK(written([](std::FILE* out) { Progress({.steps = 4, .out = out}); }).empty());
}

TEST_CASE("csv_log: rows, resume, what is refused", "[progress]") {
  TempFolder folder;
  const std::string path = folder / "log.csv";
  {
    CsvLog log(path, {"step", "train", "valid"});
    log.append({0, -NAN, 8});
    log.append({1000000, 0.1, NAN});
    log.append({1000001, 0.25, -INFINITY});
    CHECK_THROWS_AS(log.append({1, 2}), ValueError);
  }
  CHECK(read_file(path) == "step,train,valid\n0,nan,8\n1000000,0.1,nan\n1000001,0.25,-inf\n");
  {
    std::FILE* file = std::fopen(path.c_str(), "ab");
    std::fputs("1000002,0.1", file);  // cut short
    std::fclose(file);
  }
  CsvLog log(path, {"step", "train", "valid"}, 1000001);
  CHECK(log.rows().size() == 2);
  CHECK(read_file(path) == "step,train,valid\n0,nan,8\n1000000,0.1,nan\n");
  log.append({1000001, 0.5, 2});
  const Series train = log.series("train"), valid = log.series("valid", true);
  CHECK((train.x == std::vector<double>{1000000, 1000001} && train.y == std::vector<double>{0.1, 0.5} && !train.noisy));
  CHECK((valid.x == std::vector<double>{0, 1000001} && valid.y == std::vector<double>{8, 2} && valid.noisy));
  CHECK_THROWS_WITH(log.series("vaild"), Contains("did you mean \"valid\""));
  CHECK_THROWS_WITH(CsvLog(path, {"step", "loss"}, 5), Contains(path) && Contains("start anew"));
  write_file_atomically(path, [](FileWriter& out) { out.write(std::string("a,b\n1,2\n1,x\n")); });
  CHECK_THROWS_AS(CsvLog(path, {"a", "b"}, 5), IOError);
  CHECK_THROWS_WITH(CsvLog(path, {"a", "b"}, 5), Contains("line 3"));
  CHECK(CsvLog(path, {"a", "b"}).rows().empty());
  CHECK_THROWS_AS(CsvLog(folder / "none/log.csv", {"a"}), IOError);
}

TEST_CASE("write_svg_curve: a whole picture, whatever the numbers and names", "[progress]") {
  TempFolder folder;
  const std::string path = folder / "curve.svg";
  const auto svg = [&](const CurveOptions& options, const std::vector<Series>& series, const std::vector<ReferenceLine>& lines = {}) {
    write_svg_curve(path, options, series, lines);
    const std::string text = read_file(path);
    CHECK_THAT(text, Catch::StartsWith("<svg ") && Catch::EndsWith("</svg>\n") && !Contains("nan") && !Contains("inf"));
    return text;
  };
  std::vector<double> x, y;
  for (int i = 0; i < 3000; ++i) x.push_back(i), y.push_back(5.0 / (1 + i));
  CHECK_THAT(svg({.title = "a < b & \"c\"\x01\xff"}, {{"t", x, y, true}, {"v", {0, 2999}, {4, 1}}}, {{"best", 0.5}}),
             Contains("a &lt; b &amp; &quot;c&quot;??") && Contains("v 1.000") && Contains("best 0.50"));
  CHECK(svg({}, {{"t", x, y}}).size() < 20000);  // thinned
  svg({}, {});
  svg({}, {{"one", {1}, {1}}});
  svg({}, {{"bad", {0, 1, 2}, {NAN, INFINITY, 1e300}}}, {{"line", NAN}});
  CHECK_THROWS_AS(write_svg_curve(path, {}, {{"t", {1, 2}, {1}}}), ValueError);
  CHECK_THROWS_AS(write_svg_curve(folder / "none/curve.svg", {}, {}), IOError);
}
