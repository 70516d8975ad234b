#include <sluice/parallel/communicator.h>

#include <sluice/core/number/number.h>
#include <sluice/parallel/group.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>

namespace sluice {

using detail::Group;

namespace {

double usual_timeout() {
  const char* set = std::getenv("SLUICE_TIMEOUT");
  if (!set || !*set) return 300;
  const std::optional<double> seconds = parse_double(set);
  if (!seconds || !(*seconds > 0) || !std::isfinite(*seconds))
    fail<ValueError>("SLUICE_TIMEOUT: needs seconds above 0 — got \"", std::string_view(set), "\"");
  return *seconds;
}

/// The first lines in which a and b differ, one from each.
std::pair<std::string_view, std::string_view> first_difference(std::string_view a, std::string_view b) {
  while (true) {
    const std::string_view x = a.substr(0, a.find('\n')), y = b.substr(0, b.find('\n'));
    if (x != y || (x.size() == a.size() && y.size() == b.size())) return {x, y};
    a.remove_prefix(std::min(a.size(), x.size() + 1));
    b.remove_prefix(std::min(b.size(), y.size() + 1));
  }
}

}  // namespace

Traffic::Count Traffic::total() const {
  Count all;
  for (const auto& [kind, c] : by_kind)
    if (kind != "agreement")
      all.calls += c.calls, all.messages += c.messages, all.bytes += c.bytes, all.seconds += c.seconds;
  return all;
}

Communicator::Communicator() {
  static const std::shared_ptr<Group> alone = std::make_shared<Group>(nullptr, std::vector{0}, 0, 0, 300.0);
  group_ = alone;
}

Communicator::Communicator(std::shared_ptr<Transport> engine) {
  if (!engine) fail<ValueError>("communicator: there is no engine");
  std::vector<int> all(static_cast<std::size_t>(engine->size()));
  std::iota(all.begin(), all.end(), 0);
  const int rank = engine->rank(), tag = engine->free_tag.fetch_add(Group::kTags);
  group_ = std::make_shared<Group>(std::move(engine), std::move(all), rank, tag, usual_timeout());
}

int Communicator::rank() const { return group_->rank(); }
int Communicator::size() const { return group_->size(); }
int Communicator::world_rank(int rank) const {
  if (rank < 0 || rank >= size()) fail<ValueError>("world_rank: rank ", rank, " of ", size());
  return group_->world_rank(rank);
}
double Communicator::timeout() const { return group_->timeout(); }
void Communicator::set_timeout(double seconds) const { group_->set_timeout(seconds); }
std::string Communicator::device_link() const { return group_->link_text(); }
Traffic Communicator::traffic() const { return group_->traffic(); }
void Communicator::reset_traffic() const { group_->reset_traffic(); }

Communicator Communicator::split(int color, int key) const {
  if (size() == 1) return Communicator();
  std::shared_ptr<Group> made;
  group_->call([&] { made = group_->split(color, key); });
  return Communicator(std::move(made));
}

void Communicator::barrier() const {
  if (size() == 1) return;
  group_->call([&] { group_->agree({"barrier", "barrier"}); });
}

void Communicator::check_same(const std::string& what, const std::string& text) const {
  if (size() == 1) return;
  group_->call([&] {
    // Ranks compare lengths and hashes; if one differs, each rank sends its text to all.
    const auto hash = static_cast<int64_t>(detail::hash_of(text));
    const auto told = group_->agree({"check_same", "check_same: " + what, static_cast<int64_t>(text.size()), hash});
    const auto same = [&](const detail::PeerCall& t) { return t.length == told[0].length && t.flags == told[0].flags; };
    if (std::all_of(told.begin(), told.end(), same)) return;
    std::vector<std::string> texts(told.size());
    texts[static_cast<std::size_t>(rank())] = text;
    group_->exchange_all(
        "check_same",
        [&](int r) {
          return Outgoing{r, reinterpret_cast<const std::byte*>(text.data()), text.size()};
        },
        [&](int r) {
          std::string& theirs = texts[static_cast<std::size_t>(r)];
          theirs.resize(static_cast<std::size_t>(told[static_cast<std::size_t>(r)].length));
          return Incoming{r, reinterpret_cast<std::byte*>(theirs.data()), theirs.size()};
        });
    const std::string& usual = texts[detail::usual_rank(texts)];
    std::vector<int> odd;  // ranks with another text
    std::size_t shown = 0;
    for (std::size_t r = texts.size(); r-- > 0;)
      if (texts[r] != usual) odd.insert(odd.begin(), group_->world_rank(static_cast<int>(r))), shown = r;
    const auto [mine, theirs] = first_difference(texts[shown], usual);
    group_->fail_together(str(what, ": ", detail::name_ranks(odd), odd.size() == 1 ? " has" : " have",
                              " another one — got '", mine, "'; the others have '", theirs, "'"));
  });
}

}  // namespace sluice
