#include <sluice/layers/train/progress.h>

#include <sluice/core/error.h>
#include <sluice/core/text/file.h>
#include <sluice/layers/train/log.h>
#include "support/catch.h"
#include "support/temp_folder.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <regex>
#include <thread>

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

using namespace sluice;
using sluice::testing::TempFolder;

namespace {

/// What `use` writes to the stream it is given.
template <class F> std::string written(F&& use) {
  std::FILE* file = std::tmpfile();
  REQUIRE(file);
  use(file);
  std::string text(static_cast<std::size_t>(std::ftell(file)), '\0');
  std::rewind(file);
  CHECK(std::fread(text.data(), 1, text.size(), file) == text.size());
  std::fclose(file);
  return text;
}

/// Appends rows to a log until the disk is full: after the head, one row, and half of the next. Returns the error.
std::string until_full(CsvLog& log) {
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  rlimit small = before;
  small.rlim_cur = 10;
  ::setrlimit(RLIMIT_FSIZE, &small);
  std::string said;
  try {
    for (int i = 0; i < 9; ++i) log.append({1, 2});
  } catch (const IOError& e) { said = e.what(); }
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  return said;
}

/// What `use` writes to a terminal of so many columns; 0: one that does not say how many.
template <class F> std::string shown(unsigned short columns, F&& use) {
  const int screen = ::posix_openpt(O_RDWR | O_NOCTTY);
  REQUIRE((screen >= 0 && ::grantpt(screen) == 0 && ::unlockpt(screen) == 0));
  std::FILE* out = std::fopen(::ptsname(screen), "w");
  REQUIRE(out);
  const winsize size{24, columns, 0, 0};
  REQUIRE(::ioctl(::fileno(out), TIOCSWINSZ, &size) == 0);
  use(out);
  std::fclose(out);
  std::string text;
  char some[256];
  for (ssize_t n; (n = ::read(screen, some, sizeof some)) > 0;) text.append(some, static_cast<std::size_t>(n));
  ::close(screen);
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
  CHECK_THAT(text, Contains(" 25% step 1/4  loss 2.718  lr 3.0e-04  tok/s 12.3k  ") && Contains(" MiB (peak ") &&
                       Contains("\nhalf\n"));
  CHECK_THAT(text, Contains(" 75% step 3/4  loss 1.250  percent 97.53  zero 0.0000  "));
  CHECK_THAT(text, !Contains("step 2/4") && !Contains("step 4/4") && !Contains("\r"));
  CHECK(written([](std::FILE* out) { Progress({.steps = 4, .out = out}); }).empty());
}

TEST_CASE("progress: numbers and times that one likes to read", "[progress]") {
  const std::string text = written([](std::FILE* out) {
    Progress progress({.steps = 100'000'000, .out = out});
    progress.update(1, {{"a", 2.5e7}, {"b", 3e12}, {"c", -12345}, {"d", 99.95}});
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // so many steps at 2 ms are two days and more
    progress.update(2, {});
    progress.finish();
  });
  CHECK_THAT(text,
             Contains("step 1/100000000  a 25.0M  b 3e+12  c -12.3k  d 99.95  ") && Contains(" 0:00 left -:--\n"));
  CHECK(std::regex_search(text, std::regex(" left [0-9]{2,6}:[0-5][0-9]:[0-5][0-9]\n")));
  CHECK_THAT(written([](std::FILE* out) { Progress({.out = out}).update(7, {}); }),
             StartsWith("step 7  ") && !Contains("left") && !Contains("%"));
  CHECK_THAT(written([](std::FILE* out) { Progress({.steps = 7, .out = out}).update(7, {}); }),
             StartsWith("100% step 7/7  ") && EndsWith(" left 0:00\n"));
  for (const int64_t step : {29, 57, 58})  // 100·0.29 is less than 29
    CHECK_THAT(written([=](std::FILE* out) { Progress({.steps = 100, .out = out}).update(step, {}); }),
               StartsWith(str(" ", step, "% step ", step, "/100  ")));
}

TEST_CASE("progress: on a terminal one line is drawn in place, as long as it has room", "[progress]") {
  const auto run = [](std::FILE* out) {
    Progress progress({.steps = 4, .out = out});
    progress.note("before");
    progress.update(1, {{"loss", 2.5}, {"accuracy", 0.5}, {"lr", 0.25}});
    progress.update(2, {{"loss", 1.5}});  // too soon to be shown
    progress.note("half");                // and here it is
    progress.update(3, {{"loss", 0.75}});
  };
  const std::string wide = shown(120, run);
  CHECK_THAT(
      wide,
      StartsWith("before\r\n\r 25% [######..................] step 1/4  loss 2.500  accuracy 0.5000  lr 0.2500  "));
  CHECK_THAT(wide, Contains("\x1b[K\r\x1b[Khalf\r\n\r 50% [############............] step 2/4  loss 1.500  "));
  CHECK_THAT(wide, Contains("\r 75% [##################......] step 3/4  loss 0.7500  ") && Contains(" MiB (peak ") &&
                       EndsWith("\x1b[K\r\n"));
  // The last values go first, then the memory, then the bar, then the end of the line.
  const auto first = [&](unsigned short columns) {
    std::string text = shown(columns, run);
    text = text.substr(text.find(" 25%"));
    return text.substr(0, text.find("\x1b"));
  };
  CHECK_THAT(first(80), Contains("loss 2.500") && !Contains("lr ") && Contains(" MiB") && Contains("[##"));
  CHECK(first(0) == first(80));
  CHECK_THAT(first(53), Contains("loss 2.500") && !Contains("accuracy") && !Contains(" MiB") && Contains("[##"));
  CHECK_THAT(first(45), Contains("loss 2.500") && !Contains("[") && Contains(" left "));
  CHECK(first(20) == " 25% step 1/4  loss");
  for (const unsigned short columns : {120, 80, 53, 45}) CHECK_THAT(first(columns), EndsWith(" left -:--"));  // whole
  for (const unsigned short columns : {120, 80, 53, 45, 20, 5}) CHECK(first(columns).size() < columns);
}

TEST_CASE("csv_log: a full disk cuts the log, wherever the program is by now", "[progress]") {
  TempFolder folder, elsewhere;
  const std::string other(100, 'x');
  elsewhere.put("log.csv", other);
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder / ".");
  CsvLog log("log.csv", {"a", "b"});
  std::filesystem::current_path(elsewhere / ".");
  until_full(log);
  std::filesystem::current_path(before);
  log.append({3, 4});
  CHECK(read_file(elsewhere / "log.csv") == other);
  CHECK(read_file(folder / "log.csv") == "a,b\n1,2\n3,4\n");
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
  {
    CsvLog full(path, {"a", "b"});
    CHECK_THAT(until_full(full), Contains("csv_log: cannot write") && Contains(path));
    CHECK(full.rows().size() < 9);
    full.append({3, 4});  // room again: the row begins a line
    const std::size_t rows = full.rows().size();
    CHECK(CsvLog(path, {"a", "b"}, 5).rows().size() == rows);
  }
  CHECK_THROWS_AS(CsvLog(folder / "none/log.csv", {"a"}), IOError);
}

TEST_CASE("write_svg_curve: a whole picture, whatever the numbers and names", "[progress]") {
  TempFolder folder;
  const std::string path = folder / "curve.svg";
  const auto svg = [&](const CurveOptions& options, const std::vector<Series>& series,
                       const std::vector<ReferenceLine>& lines = {}) {
    write_svg_curve(path, options, series, lines);
    const std::string text = read_file(path);
    CHECK_THAT(text, StartsWith("<svg ") && EndsWith("</svg>\n") && !Contains("nan") && !Contains("inf"));
    return text;
  };
  std::vector<double> x, y;
  for (int i = 0; i < 3000; ++i) x.push_back(i), y.push_back(5.0 / (1 + i));
  CHECK_THAT(svg({.title = "a < b & \"c\"\x01\xff"}, {{"t", x, y, true}, {"v", {0, 2999}, {4, 1}}}, {{"best", 0.5}}),
             Contains("a &lt; b &amp; &quot;c&quot;?\uFFFD") && Contains("v 1.000") && Contains("best 0.50"));
  CHECK(svg({}, {{"t", x, y}}).size() < 20000);  // thinned
  svg({}, {});
  svg({}, {{"one", {1}, {1}}});
  svg({}, {{"close", {0, 1}, {0, 5e-324}}, {"beside", {1, 1 + 1e-16}, {0, 0}}});
  for (const double v : {123456.789, 0.3, -9.99e14, 9.99e14})  // rounding alone keeps a curve from being constant
    svg({}, {{"noise", {v, std::nextafter(v, 1e300)}, {v, std::nextafter(v, -1e300)}}});
  svg({}, {{"bad", {0, 1, 2}, {NAN, INFINITY, 1e300}}}, {{"line", NAN}});
  CHECK_THROWS_AS(write_svg_curve(path, {}, {{"t", {1, 2}, {1}}}), ValueError);
  CHECK_THROWS_AS(write_svg_curve(folder / "none/curve.svg", {}, {}), IOError);
}

TEST_CASE("write_svg_curve: where points, means, reference lines and their labels lie", "[progress]") {
  TempFolder folder;
  const auto svg = [&](const std::vector<Series>& series, const std::vector<ReferenceLine>& lines = {},
                       const std::string& title = "") {
    write_svg_curve(folder / "curve.svg", {.title = title}, series, lines);
    return read_file(folder / "curve.svg");
  };
  // The axes go from (62, 426) to (776, 78) when no line has a label.
  const std::string plain = svg({{"v", {0, 10}, {0, 6}}});
  CHECK_THAT(plain,
             Contains("d=\"M62.0 426.0L776.0 78.0\"") && Contains("cx=\"776.0\" cy=\"78.0\"") && Contains(">v 6.000<"));
  CHECK_THAT(plain, Contains("y=\"256.0\" text-anchor=\"end\" fill=\"#374151\">3<") &&
                        Contains("x=\"62.0\" y=\"445\" text-anchor=\"middle\" fill=\"#374151\">0<"));
  // A picture says what it shows, and has colours for dark screens.
  CHECK_THAT(plain, Contains("<desc>loss over step: v</desc>") &&
                        Contains("@media(prefers-color-scheme:dark){[fill=\"#ffffff\"]{fill:#0d1117}"));
  // A point that cannot be drawn leaves a gap.
  CHECK_THAT(svg({{"v", {0, 5, 10, 10}, {0, NAN, 0, 6}}}), Contains("d=\"M62.0 426.0M776.0 426.0L776.0 78.0\""));
  // The names of the axes stand at their middles.
  CHECK_THAT(plain, Contains("<text x=\"419.0\"") && Contains("translate(17 252.0) rotate(-90)"));
  CHECK_THAT(svg({{"v", {0, 5e6}, {0, 5000}}}), Contains(">2M<") && Contains(">3k<"));
  // The top is cut a quarter above the reference, on either side of 0.
  std::vector<double> steps, likelihood, loss;
  for (int i = 0; i <= 100; ++i) steps.push_back(i), likelihood.push_back(-0.04 * i), loss.push_back(100.0 / (i + 1));
  CHECK_THAT(svg({{"v", steps, likelihood}}, {{"best", -1}}),
             Contains("y=\"82.0\" text-anchor=\"end\" fill=\"#374151\">0<"));
  CHECK_THAT(svg({{"v", steps, loss}}, {{"best", 8}}), Contains(">10<") && !Contains(">15<"));
  CHECK_THAT(svg({{"v", {0, 1}, {0, 0.5}}}), Contains(">0.3<"));

  // Labels of lines that are close stand 14 apart: below one another, at the bottom above one another.
  const std::string close = svg({{"v", {0, 10}, {0, 6}}}, {{"best", 3}, {"also", 3}, {"low", 0}});
  CHECK_THAT(close, Contains("M62 252.0H704.4") && Contains("M704.4 252.0L714.4 252.0") &&
                        Contains("M704.4 252.0L714.4 266.0"));
  CHECK_THAT(close, Contains("x=\"718.4\" y=\"430.0\" fill=\"#4b5563\">low 0.00<"));
  const std::string low = svg({{"v", {0, 10}, {0, 6}}}, {{"a", 0}, {"b", 0}, {"c", 0}});
  CHECK_THAT(low, Contains("y=\"402.0\" fill=\"#4b5563\">a ") && Contains("y=\"416.0\" fill=\"#4b5563\">b ") &&
                      Contains("y=\"430.0\" fill=\"#4b5563\">c "));

  // Of 1,600 points each two become their mean; the legend keeps the last value.
  std::vector<double> x(1600), y(1600);
  for (std::size_t i = 0; i < 1600; ++i) x[i] = static_cast<double>(i), y[i] = i % 2 ? 2 : 0;
  const std::string thin = svg({{"v", x, y}});
  CHECK_THAT(thin, Contains("d=\"M62.2 426.0L63.1 426.0L") && Contains(">v 2.000<"));
  CHECK(std::count(thin.begin(), thin.end(), 'L') == 799);

  // The mean of neighbours: none at the first point, ten on each side further on, those before it at the last.
  x.resize(400), y.resize(400);
  std::fill(y.begin(), y.end(), 0), y[0] = 8;
  CHECK_THAT(svg({{"v", x, y, true}}),
             Contains("stroke-width=\"2\" stroke-opacity=\"1\" stroke-linejoin=\"round\" d=\"M62.0 78.0L63.8 426.0L"));
  CHECK_THAT(svg({{"v", x, x, true}}), Contains(">v 394.000<"));

  // What is no UTF-8 would make the file unreadable: overlong, a surrogate, beyond U+10FFFF, cut short. XML also has no
  // U+FFFE, no U+FFFF and no control characters.
  CHECK_THAT(
      svg({}, {}, "\u00e9\u20ac\U0001f600|\xF0\x8F\xBF\xBF|\xE0\x9F\xBF|\xED\xA0\x80|\uFFFE\uFFFF\x1f<|\xE2\x82"),
      Contains("<title>\u00e9\u20ac\U0001f600|\uFFFD\uFFFD\uFFFD\uFFFD|\uFFFD\uFFFD\uFFFD|\uFFFD\uFFFD\uFFFD|??\?&lt;|"
               "\uFFFD</title>"));
}

TEST_CASE("csv_log: names that would break the file are refused", "[progress]") {
  TempFolder folder;
  for (const char* name : {"loss, train", "a\nb", "a\rb", "\"a\""})
    CHECK_THROWS_WITH(CsvLog(folder / "log.csv", {"step", name}), Contains("csv_log"));
  CHECK_THROWS_AS(CsvLog(folder / "log.csv", {}), ValueError);
  CHECK_THROWS_WITH(CsvLog(folder / "log.csv", {"step", "loss", "time", "loss"}),
                    "csv_log: two columns have the name 'loss'");
}

TEST_CASE("write_svg_curve: a long curve with points that cannot be drawn keeps the others", "[progress]") {
  TempFolder folder;
  Series s{"loss"};
  for (int i = 0; i < 80'000; ++i) s.x.push_back(i), s.y.push_back(i % 100 == 7 ? NAN : 1.0);
  write_svg_curve(folder / "c.svg", {}, {s});
  CHECK_THAT(read_file(folder / "c.svg"), !Contains("d=\"\"/>"));
}
