#include "tensor_checks.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/SavedTensorHooks.h>
#include <ATen/autocast_mode.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/version.h>
#include <torch/csrc/autograd/forward_grad.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

namespace fxloom {

namespace {

constexpr std::int64_t kAny = -1;  // sizes and strides of the layouts that we guard are never negative
// A stride of kFollows - k is that of dimension k times its size.
constexpr std::int64_t kFollows = -2;

class StridedCheck final : public TensorCheck {
public:
    explicit StridedCheck(const py::object& p)
        : type_(py::object(p.attr("type"))),
          keys_(p.attr("keys").cast<std::uint64_t>()),
          dtype_(reinterpret_cast<THPDtype*>(p.attr("dtype").ptr())->scalar_type),
          device_(reinterpret_cast<THPDevice*>(p.attr("device").ptr())->device),
          requires_grad_(p.attr("requires_grad").cast<bool>()),
          sizes_(numbers(p.attr("sizes"))),
          strides_(numbers(p.attr("strides"))) {}

    bool holds(PyObject* value) const override {
        if (reinterpret_cast<PyObject*>(Py_TYPE(value)) != type_.ptr()) return false;
        const at::TensorImpl* t = THPVariable_Unpack(value).unsafeGetTensorImpl();
        if (t->key_set().raw_repr() != keys_ || c10::typeMetaToScalarType(t->dtype()) != dtype_ || t->device() != device_ ||
            t->requires_grad() != requires_grad_)
            return false;
        if (static_cast<std::size_t>(t->dim()) != sizes_.size()) return false;
        if (!agrees(t->sizes(), sizes_)) return false;
        if (strides_.empty()) return true;
        const c10::IntArrayRef have = t->strides();
        for (std::size_t i = 0; i < strides_.size(); ++i) {
            const std::int64_t want = strides_[i];
            if (want >= 0) {
                if (have[i] != want) return false;
            } else if (want <= kFollows) {
                const auto k = static_cast<std::size_t>(kFollows - want);
                if (have[i] != have[k] * std::max<std::int64_t>(t->sizes()[k], 1)) return false;
            }
        }
        return true;
    }

private:
    static std::vector<std::int64_t> numbers(const py::object& values) {
        std::vector<std::int64_t> out;
        if (values.is_none()) return out;
        for (const py::handle v : values) out.push_back(v.is_none() ? kAny : v.cast<std::int64_t>());
        return out;
    }
    static bool agrees(c10::IntArrayRef have, const std::vector<std::int64_t>& want) {
        for (std::size_t i = 0; i < want.size(); ++i)
            if (want[i] != kAny && have[i] != want[i]) return false;
        return true;
    }

    py::object type_;
    std::uint64_t keys_;
    at::ScalarType dtype_;
    c10::Device device_;
    bool requires_grad_;
    std::vector<std::int64_t> sizes_;
    std::vector<std::int64_t> strides_;  // empty: not checked (layouts without strides, 0-d)
};

class StridedList final : public TensorList {
public:
    bool add(PyObject* value) override {
        const at::TensorImpl* t = THPVariable_Unpack(value).unsafeGetTensorImpl();
        if (t->layout() != c10::kStrided || !t->has_storage() || t->is_python_dispatch()) return false;
        tensors_.push_back({value, Py_TYPE(value), t, t->key_set().raw_repr(), storage(t), t->device(), c10::typeMetaToScalarType(t->dtype()),
                            t->requires_grad(), t->sizes().size(), numbers_.size()});
        numbers_.insert(numbers_.end(), t->sizes().begin(), t->sizes().end());
        numbers_.insert(numbers_.end(), t->strides().begin(), t->strides().end());
        return true;
    }

    bool holds() const override {
        for (const Known& known : tensors_) {
            if (Py_TYPE(known.value) != known.type) return false;
            const at::TensorImpl* t = THPVariable_Unpack(known.value).unsafeGetTensorImpl();
            if (t != known.tensor || t->key_set().raw_repr() != known.keys || storage(t) != known.storage || t->device() != known.device ||
                c10::typeMetaToScalarType(t->dtype()) != known.dtype || t->requires_grad() != known.requires_grad)
                return false;
            const c10::IntArrayRef sizes = t->sizes();
            if (sizes.size() != known.dim) return false;
            const std::int64_t* numbers = numbers_.data() + known.first;
            const c10::IntArrayRef strides = t->strides();
            for (std::size_t i = 0; i < known.dim; ++i)
                if (sizes[i] != numbers[i] || strides[i] != numbers[known.dim + i]) return false;
        }
        return true;
    }

private:
    struct Known {
        PyObject* value;
        PyTypeObject* type;
        const at::TensorImpl* tensor;
        std::uint64_t keys;
        const void* storage;
        c10::Device device;
        at::ScalarType dtype;
        bool requires_grad;
        std::size_t dim;
        std::size_t first;  // of its sizes, then strides, in numbers_
    };
    static const void* storage(const at::TensorImpl* t) { return t->unsafe_storage().unsafeGetStorageImpl(); }
    std::vector<Known> tensors_;
    std::vector<std::int64_t> numbers_;
};

// What autocast would do on each kind of device that has it.
struct AutocastState {
    static constexpr const auto& devices = at::autocast::_AUTOCAST_SUPPORTED_DEVICES;

    // autocast is off where its key is excluded; read at once for all devices
    std::uint64_t off = (c10::impl::tls_local_dispatch_key_set().excluded_ & c10::autocast_dispatch_keyset).raw_repr();
    std::array<at::ScalarType, devices.size()> dtype = dtypes();

    bool operator!=(const AutocastState& other) const { return off != other.off || dtype != other.dtype; }

    // `cpu bfloat16 cuda float16`: the devices for which it is on; `off` where there is none.
    std::string describe() const {
        std::string out;
        const c10::DispatchKeySet excluded(c10::DispatchKeySet::RAW, off);
        for (std::size_t i = 0; i < devices.size(); ++i)
            if (!excluded.has(at::autocast::get_autocast_dispatch_key_from_device_type(devices[i])))
                out += (out.empty() ? "" : " ") + c10::DeviceTypeName(devices[i], true) + " " + std::string(c10::getDtypeNames(dtype[i]).first);
        return out.empty() ? "off" : out;
    }

private:
    static std::array<at::ScalarType, devices.size()> dtypes() {
        std::array<at::ScalarType, devices.size()> found;
        for (std::size_t i = 0; i < found.size(); ++i) found[i] = at::autocast::get_autocast_dtype(devices[i]);
        return found;
    }
};

struct Snapshot {
    bool grad_mode = at::GradMode::is_enabled();
    bool inference_mode = c10::InferenceMode::is_enabled();
    AutocastState autocast;
    bool autocast_cache = at::autocast::is_autocast_cache_enabled();
    at::ScalarType default_dtype = c10::typeMetaToScalarType(c10::get_default_dtype());
    bool deterministic = at::globalContext().deterministicAlgorithms();
    bool deterministic_warn_only = at::globalContext().deterministicAlgorithmsWarnOnly();
    int threads = at::get_num_threads();
    std::int64_t function_modes = at::impl::PythonTorchFunctionTLS::stack_len();
    bool torch_function_disabled = at::impl::PythonTorchFunctionTLS::get_disabled_state() != at::impl::TorchFunctionDisabledState::ENABLED;
    std::int64_t dispatch_modes = c10::impl::TorchDispatchModeTLS::stack_len();
    bool tracing = c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::Tracer);
    bool forward_mode = torch::autograd::ForwardADLevel::try_get_by_idx(0) != nullptr;

#define FXLOOM_FIELDS(FIELD)                                                                                                     \
    FIELD(grad_mode) FIELD(inference_mode) FIELD(autocast) FIELD(autocast_cache) FIELD(default_dtype) FIELD(deterministic)       \
    FIELD(deterministic_warn_only) FIELD(threads) FIELD(function_modes) FIELD(torch_function_disabled) FIELD(dispatch_modes)     \
    FIELD(tracing) FIELD(forward_mode)

    // Calls differs(name) for each part that is another in `other`.
    template <class F>
    void each(const Snapshot& other, F&& differs) const {
#define FXLOOM_COMPARE(name) if (name != other.name) differs(#name);
        FXLOOM_FIELDS(FXLOOM_COMPARE)
#undef FXLOOM_COMPARE
    }

    // `grad_mode=True, ...`: all parts by name.
    std::string describe() const {
        std::string out;
#define FXLOOM_SHOW(name) out += (out.empty() ? "" : ", ") + std::string(#name "=") + shown(name);
        FXLOOM_FIELDS(FXLOOM_SHOW)
#undef FXLOOM_SHOW
        return out;
    }
#undef FXLOOM_FIELDS

private:
    static std::string shown(bool value) { return value ? "True" : "False"; }
    static std::string shown(int value) { return std::to_string(value); }
    static std::string shown(std::int64_t value) { return std::to_string(value); }
    static std::string shown(at::ScalarType dtype) { return std::string(c10::getDtypeNames(dtype).first); }
    static std::string shown(const AutocastState& autocast) { return autocast.describe(); }
};

class TorchState final : public GlobalState {
public:
    bool is_current() const override {
        bool same = true;
        snapshot_.each(Snapshot{}, [&](const char*) { same = false; });
        return same;
    }
    std::vector<std::string> changed() const {
        std::vector<std::string> names;
        snapshot_.each(Snapshot{}, [&](const char* name) { names.emplace_back(name); });
        return names;
    }
    std::string describe() const { return snapshot_.describe(); }

private:
    Snapshot snapshot_;
};

}  // namespace

std::unique_ptr<TensorCheck> make_tensor_check(const py::object& properties) {
    if (!THPDtype_Check(properties.attr("dtype").ptr()) || !THPDevice_Check(properties.attr("device").ptr()))
        throw py::type_error("TensorProperties: dtype must be a torch.dtype and device a torch.device");
    return std::make_unique<StridedCheck>(properties);
}

std::unique_ptr<TensorList> make_tensor_list() { return std::make_unique<StridedList>(); }

std::unique_ptr<GlobalState> copy_global_state(const py::object& state) {
    return std::make_unique<TorchState>(state.cast<const TorchState&>());
}

PyObject* tensor_number(PyObject* value, int what, Py_ssize_t dim) {
    if (!THPVariable_Check(value)) return nullptr;
    const at::Tensor& t = THPVariable_Unpack(value);
    if (what == 2) return PyLong_FromLongLong(t.storage_offset());
    if (dim < 0 || dim >= t.dim()) return nullptr;
    return PyLong_FromLongLong(what == 0 ? t.size(dim) : t.stride(dim));
}

PyObject* tensor_gradient(PyObject* value) {
    if (!THPVariable_Check(value)) return nullptr;
    const c10::TensorImpl* tensor = THPVariable_Unpack(value).unsafeGetTensorImpl();
    return THPVariable_Wrap(tensor->grad());
}

const void* tensor_storage(PyObject* value) {
    if (!THPVariable_Check(value)) return nullptr;
    const at::Tensor& t = THPVariable_Unpack(value);
    return t.has_storage() ? t.storage().unsafeGetStorageImpl() : nullptr;
}

std::size_t saved_tensor_hooks() { return at::SavedTensorDefaultHooks::get_tls_state().stack.size(); }

void register_tensor_checks(py::module_& m) {
    m.attr("TORCH_VERSION") = TORCH_VERSION;
    py::class_<TorchState>(m, "GlobalState", "torch's global state at the time of construction.")
        .def(py::init<>())
        .def("is_current", &TorchState::is_current)
        .def("changed", &TorchState::changed, "Names of the parts that differ now.")
        .def("__repr__", &TorchState::describe);
}

}  // namespace fxloom
