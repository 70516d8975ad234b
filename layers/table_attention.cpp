#include <sluice/layers/table_rows.h>

namespace sluice::detail {

void add_attention_rows(RowList& list) { attention_rows(list); }

}  // namespace sluice::detail
