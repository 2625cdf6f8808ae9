//! A module by PyO3's bindings, which says the level that it was compiled for.

use pyo3_ffi::*;
use std::ffi::CStr;
use std::ptr;

const LEVEL: &CStr = if cfg!(target_feature = "avx512f") {
    c"v4"
} else if cfg!(target_feature = "avx2") {
    c"v3"
} else if cfg!(target_feature = "sse4.2") {
    c"v2"
} else {
    c"v1"
};

unsafe extern "C" fn level(_module: *mut PyObject, _nothing: *mut PyObject) -> *mut PyObject {
    PyUnicode_FromString(LEVEL.as_ptr())
}

unsafe extern "C" fn total(_module: *mut PyObject, number: *mut PyObject) -> *mut PyObject {
    let numbers: Vec<f64> = (0..PyLong_AsLong(number)).map(|number| number as f64).collect();
    PyFloat_FromDouble(numbers.iter().sum())
}

static mut METHODS: [PyMethodDef; 3] = [
    PyMethodDef {
        ml_name: c"level".as_ptr(),
        ml_meth: PyMethodDefPointer { PyCFunction: level },
        ml_flags: METH_NOARGS,
        ml_doc: ptr::null(),
    },
    PyMethodDef {
        ml_name: c"total".as_ptr(),
        ml_meth: PyMethodDefPointer { PyCFunction: total },
        ml_flags: METH_O,
        ml_doc: ptr::null(),
    },
    PyMethodDef::zeroed(),
];

static mut DEFINITION: PyModuleDef = PyModuleDef {
    m_base: PyModuleDef_HEAD_INIT,
    m_name: c"_rust".as_ptr(),
    m_doc: ptr::null(),
    m_size: 0,
    m_methods: ptr::null_mut(),
    m_slots: ptr::null_mut(),
    m_traverse: None,
    m_clear: None,
    m_free: None,
};

#[no_mangle]
pub unsafe extern "C" fn PyInit__rust() -> *mut PyObject {
    DEFINITION.m_methods = &raw mut METHODS as *mut PyMethodDef;
    PyModule_Create(&raw mut DEFINITION)
}
