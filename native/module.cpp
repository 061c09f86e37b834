// Python's view of the native core. Arrays come as NumPy arrays of exactly the stated type; relive.buffer checks and
// converts what users give. Every call holds the interpreter's lock, so each is whole to other threads (only ArrayRows
// may run Python code in between, to convert a value, and it does so before its first write).
#include <algorithm>
#include <array>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "array_rows.h"
#include "block.h"
#include "buffer.h"
#include "index.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace relive {

template <class T>
using Out = nb::ndarray<nb::numpy, T, nb::ndim<1>>;

template <class T>
Out<T> to_numpy(std::vector<T> values) {
  auto* kept = new std::vector<T>(std::move(values));
  nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return Out<T>(kept->data(), {kept->size()}, owner);
}

static std::vector<int64_t> find(const Index& index, const Vector<int64_t>& ids) {
  std::vector<int64_t> slots;
  for (int64_t i = 0; i < ids.size(); ++i) slots.push_back(index.slots().find(ids[i]));
  return slots;
}

static void check_stored(const Index& index, const Vector<int64_t>& ids) {
  for (int64_t i = 0; i < ids.size(); ++i) {
    if (index.slots().find(ids[i]) < 0) throw nb::value_error("an id is not stored");
  }
}

// Whoever leaves must be stored and named once, newcomers must be new and fit in.
static void check_replace(const Index& index, const Vector<int64_t>& victims, const Vector<int64_t>& ids) {
  check_stored(index, victims);
  std::vector<int64_t> sorted(victims.data(), victims.data() + victims.size());
  if (!std::is_sorted(sorted.begin(), sorted.end())) std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) throw nb::value_error("an id leaves twice");
  if (index.size() - victims.size() + ids.size() > index.capacity()) throw nb::value_error("there is no room");
  int64_t next = index.slots().next_id();
  for (int64_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < next) throw nb::value_error("new ids must increase");
    next = ids[i] + 1;
  }
}

static Block draw(Index& index, int64_t count, Drawing drawing, double beta, bool over_buffer, const ArrayRows* rows) {
  if (count < 0) throw nb::value_error("count must not be negative");
  const int64_t drawn = std::min(count, index.drawable());
  std::vector<int64_t> offsets{Block::kHeadBytes * drawn};
  if (rows != nullptr) offsets = rows->layout(Block::kHeadBytes * drawn, drawn);
  Block block(drawn, offsets.back());
  index.draw(count, {drawing, beta, over_buffer}, {block.ids(), block.slots(), block.probabilities(), block.weights()});
  if (rows != nullptr) rows->gather(block.slots(), drawn, block.data(), offsets);
  return block;
}

static int expose_block(PyObject* self, Py_buffer* view, int flags) {
  const Block* block = nb::inst_ptr<Block>(nb::handle(self));
  return PyBuffer_FillInfo(view, self, block->data(), static_cast<Py_ssize_t>(block->bytes()), 0, flags);
}

static void bind_block(nb::module_& m) {
  static PyType_Slot slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(expose_block)}, {0, nullptr}};
  nb::class_<Block>(m, "Block", nb::type_slots(slots), "The memory of one draw; writable bytes.")
      .def("__len__", &Block::count)
      .def_prop_ro("nbytes", &Block::bytes);
}

static void bind_index(nb::module_& m) {
  nb::enum_<Drawing>(m, "Drawing")
      .value("STRATIFIED", Drawing::kStratified, "One from each of B equal shares of the total.")
      .value("INDEPENDENT", Drawing::kIndependent, "Each from the whole total.")
      .value("DISTINCT", Drawing::kDistinct, "No item twice.");

  nb::class_<Index>(m, "Index", "Stored ids, their slots and priorities, and draws among them.")
      .def(nb::init<int64_t, double, uint64_t>(), "capacity"_a, "alpha"_a, "seed"_a)
      .def_prop_ro("capacity", &Index::capacity)
      .def_prop_ro("alpha", &Index::alpha)
      .def_prop_ro("size", &Index::size)
      .def_prop_ro("drawable", &Index::drawable, "How many stored items have a positive priority.")
      .def_prop_ro("total", &Index::total, "Sum of the leaves.")
      .def_prop_ro("nbytes", &Index::bytes)
      .def_prop_ro("next_id", [](const Index& index) { return index.slots().next_id(); })
      .def_prop_ro("is_ring", [](const Index& index) { return index.slots().is_ring(); })
      .def_prop_ro("mean_priority", &Index::mean_priority)
      .def(
          "default_priority",
          [](Index& index, const Vector<int64_t>& victims) {
            check_stored(index, victims);
            return index.default_priority(victims.data(), victims.size());
          },
          "victims"_a,
          "What a new item gets once the victims have left: the largest live priority, 1 when there is none.")
      .def(
          "first_bad",
          [](Index& index, const Vector<double>& priorities) {
            return index.first_bad(priorities.data(), priorities.size());
          },
          "priorities"_a, "Position of the first priority that cannot be kept, or -1.")
      .def("push", &Index::push, "priority"_a.none(),
           "Adds one in place of the oldest when full, and returns its id; None: default priority; -1: a bad one.")
      .def(
          "propose",
          [](const Index& index, const Vector<int64_t>& victims, int64_t count) {
            return to_numpy(index.slots().propose(victims.data(), victims.size(), count));
          },
          "victims"_a, "count"_a, "The slots that the next `count` ids would get once the victims have left.")
      .def(
          "replace",
          [](Index& index, const Vector<int64_t>& victims, const Vector<int64_t>& ids, nb::handle priorities) {
            Vector<double> given;
            if (!priorities.is_none() && (!given.take(priorities.ptr()) || given.size() != ids.size())) {
              throw nb::type_error("priorities must be a float64 array, one for each id");
            }
            check_replace(index, victims, ids);
            index.replace(victims.data(), victims.size(), ids.data(), ids.size(),
                          priorities.is_none() ? nullptr : given.data());
          },
          "victims"_a, "ids"_a, "priorities"_a.none(),
          "Evicts the victims and inserts new ids; nothing is done when these are not stored or not new.")
      .def(
          "skip_to", [](Index& index, int64_t next) { index.slots().skip_to(next); }, "next_id"_a)
      .def(
          "update",
          [](Index& index, const Vector<int64_t>& ids, const Vector<double>& values, double epsilon) {
            if (values.size() != ids.size()) throw nb::value_error("not one value for each id");
            return index.update(ids.data(), values.data(), ids.size(), epsilon);
          },
          "ids"_a, "values"_a, "epsilon"_a = -1.0,
          "Sets priorities, or with epsilon >= 0 those of TD errors, |error| + epsilon. How many ids were still "
          "stored, "
          "or -1 - (position of the first bad value).")
      .def("draw", &draw, "count"_a, "drawing"_a, "beta"_a = 0.0, "over_buffer"_a = false, "rows"_a.none() = nullptr,
           "Draws `count` items, or where fewer can be drawn each of those once; with rows, their fields too.")
      .def(
          "locate",
          [](Index& index, const Vector<double>& shares) {
            std::vector<int64_t> ids(static_cast<size_t>(shares.size()));
            index.locate(shares.data(), shares.size(), ids.data());
            return to_numpy(std::move(ids));
          },
          "shares"_a, "The ids that hold the given shares, each in [0, 1], of the cumulative leaves.")
      .def(
          "slot", [](const Index& index, int64_t id) { return index.slots().find(id); }, "id_"_a)
      .def(
          "find", [](const Index& index, const Vector<int64_t>& ids) { return to_numpy(find(index, ids)); }, "ids"_a,
          "The slot of each id, -1 where it is not stored.")
      .def(
          "ids", [](const Index& index) { return to_numpy(index.slots().ids()); }, "All stored ids, increasing.")
      .def(
          "oldest",
          [](Index& index, int64_t count) { return to_numpy(index.slots().oldest(std::min(count, index.size()))); },
          "count"_a)
      .def(
          "leaves",
          [](Index& index, const Vector<int64_t>& ids) {
            std::vector<float> leaves;
            for (int64_t slot : find(index, ids)) leaves.push_back(slot < 0 ? NAN : index.tree().leaf(slot));
            return to_numpy(std::move(leaves));
          },
          "ids"_a, "The leaf of each id, priority^alpha; NaN where it is not stored.")
      .def(
          "priorities",
          [](Index& index, const Vector<int64_t>& ids) {
            std::vector<double> result;
            for (int64_t slot : find(index, ids)) {
              result.push_back(slot < 0 ? NAN : index.priority_of(index.tree().leaf(slot)));
            }
            return to_numpy(std::move(result));
          },
          "ids"_a, "The raw priority of each id; NaN where it is not stored.")
      .def(
          "random",
          [](Index& index, int64_t count) {
            std::vector<double> values(static_cast<size_t>(count));
            for (double& value : values) value = index.random().uniform();
            return to_numpy(std::move(values));
          },
          "count"_a, "Uniform numbers in [0, 1) from the buffer's stream.")
      .def_prop_rw(
          "random_state", [](Index& index) { return index.random().state(); },
          [](Index& index, const Random::State& state) { index.random() = Random(state); })
      .def(
          "split_random", [](Index& index, uint64_t number) { index.random() = index.random().split(number); },
          "number"_a, "Goes over to the random stream of worker `number`.")
      .def(
          "free_slots", [](const Index& index) { return to_numpy(std::vector<int64_t>(index.slots().free())); },
          "Free slots in the order of a stack; empty while the index is a ring.")
      .def(
          "restore",
          [](Index& index, const Vector<int64_t>& ids, const Vector<int64_t>& slots, const Vector<float>& leaves,
             const Vector<int64_t>& free, bool ring) {
            const bool lengths_agree = slots.size() == ids.size() && leaves.size() == ids.size();
            if (!lengths_agree ||
                !index.restore(ids.data(), slots.data(), leaves.data(), ids.size(), free.data(), free.size(), ring)) {
              throw nb::value_error("contradictory state");
            }
          },
          "ids"_a, "slots"_a, "leaves"_a, "free"_a, "ring"_a, "Fills an empty index from a checkpoint.");
}

// Adds one object to a list whose positions are slots. What was there is let go last: its end may run any code.
static int64_t push_object(const nb::list& items, Index& index, nb::handle experience, std::optional<double> priority) {
  const int64_t id = index.push(priority);
  if (id < 0) return id;
  const auto slot = static_cast<Py_ssize_t>(index.slots().find(id));
  while (PyList_GET_SIZE(items.ptr()) < slot) {
    if (PyList_Append(items.ptr(), Py_None) != 0) throw nb::python_error();
  }
  const int failed = PyList_GET_SIZE(items.ptr()) == slot
                         ? PyList_Append(items.ptr(), experience.ptr())
                         : PyList_SetItem(items.ptr(), slot, nb::borrow(experience).release().ptr());
  if (failed != 0) throw nb::python_error();
  return id;
}

// Random objects lie anywhere in memory: their headers are fetched ahead of the one that is being counted.
static nb::list take(const nb::list& items, const Vector<int64_t>& slots) {
  constexpr int64_t kAhead = 8;
  PyObject** const all = reinterpret_cast<PyListObject*>(items.ptr())->ob_item;
  const int64_t* at = slots.data();
  const int64_t count = slots.size();
  for (int64_t i = 0; i < count; ++i) {
    if (at[i] < 0 || at[i] >= static_cast<int64_t>(items.size())) throw nb::index_error("slot out of range");
    __builtin_prefetch(all + at[i]);
  }
  nb::list result = nb::steal<nb::list>(PyList_New(static_cast<Py_ssize_t>(count)));
  if (!result.is_valid()) throw nb::python_error();
  for (int64_t i = 0; i < std::min(kAhead, count); ++i) __builtin_prefetch(all[at[i]], 1);
  for (int64_t i = 0; i < count; ++i) {
    if (i + kAhead < count) __builtin_prefetch(all[at[i + kAhead]], 1);
    PyObject* item = all[at[i]];
    Py_INCREF(item);
    PyList_SET_ITEM(result.ptr(), static_cast<Py_ssize_t>(i), item);
  }
  return result;
}

static void bind_rows(nb::module_& m) {
  nb::class_<ArrayRows>(m, "ArrayRows", "Experiences of one fixed shape, as an array of structs.")
      .def(
          "__init__",
          [](ArrayRows* self, int64_t capacity,
             const std::vector<std::tuple<nb::str, std::string, int64_t, std::vector<int64_t>>>& fields,
             nb::object convert, nb::object refuse, nb::object mapping) {
            std::vector<Field> made;
            for (const auto& [name, kind, item_bytes, shape] : fields) {
              made.emplace_back(name, kind.at(0), item_bytes, shape);
            }
            new (self) ArrayRows(capacity, std::move(made), std::move(convert), std::move(refuse), std::move(mapping));
          },
          "capacity"_a, "fields"_a, "convert"_a, "refuse"_a, "mapping"_a)
      .def_prop_ro("nbytes", &ArrayRows::bytes)
      .def_prop_ro("stride", &ArrayRows::stride, "Bytes of a row, padding included.")
      .def("layout", &ArrayRows::layout, "head"_a, "count"_a,
           "Where each field of `count` rows lies behind `head` bytes in a block, and the block's length.")
      .def(
          "push",
          [](ArrayRows& rows, Index& index, nb::handle values, std::optional<double> priority) {
            rows.stage(values);
            const int64_t id = index.push(priority);
            if (id >= 0) rows.commit(index.slots().find(id));
            return id;
          },
          "index"_a, "values"_a, "priority"_a.none(), "Adds one row; see Index.push.")
      .def(
          "extend",
          [](ArrayRows& rows, Index& index, nb::handle values) {
            const ArrayRows::Columns columns = rows.columns(values);
            if (columns.rows() > index.capacity()) return int64_t{-1};
            index.extend(columns.rows());
            rows.commit(columns, index.new_slots());
            return columns.rows();
          },
          "index"_a, "values"_a,
          "Adds columns in place of the oldest rows, with the default priority, and returns how many rows they have; "
          "-1 "
          "when those are more than the capacity, and nothing was done.")
      .def(
          "put",
          [](ArrayRows& rows, nb::handle values, const Vector<int64_t>& slots) {
            const ArrayRows::Columns columns = rows.columns(values);
            if (columns.rows() != slots.size()) throw nb::value_error("not one slot for each row");
            rows.check(slots.data(), slots.size());
            rows.commit(columns, slots.data());
          },
          "values"_a, "slots"_a, "Stores columns in the given slots.")
      .def(
          "gather",
          [](const ArrayRows& rows, const Vector<int64_t>& slots) {
            const int64_t count = slots.size();
            rows.check(slots.data(), count);
            const std::vector<int64_t> offsets = rows.layout(Block::kHeadBytes * count, count);
            Block block(count, offsets.back());
            rows.gather(slots.data(), count, block.data(), offsets);
            return block;
          },
          "slots"_a, "A block with the fields of these rows; its ids, slots, probabilities and weights mean nothing.");

  m.def("push_object", &push_object, "items"_a, "index"_a, "experience"_a, "priority"_a.none(),
        "Adds one object to a list by slot; see Index.push.");
  m.def("take", &take, "items"_a, "slots"_a, "The items of a list at these positions.");
}

}  // namespace relive

NB_MODULE(_core, m) {
  nb::set_leak_warnings(false);  // what ends with the interpreter is no leak; nanobind would report it on stderr
  m.doc() = "Native core of relive.buffer.";
  relive::bind_block(m);
  relive::bind_index(m);
  relive::bind_rows(m);
  m.def("kernels", [] { return relive::kernels().name; }, "Name of the kernels in use.");
  m.def("use_kernels", &relive::use_kernels, "name"_a, "Changes the kernels for the whole process (for tests).");
}
