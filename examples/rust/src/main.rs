//! Trains the exported step from Rust, with nothing but the standard library:
//!
//!     PACKAGE=/path/to/spirals cargo run --release -- /path/to/spirals/parameters.safetensors

use std::ffi::{c_char, c_double, c_int, CStr, CString};

/// The functions of spirals.h that this program uses.
mod ffi {
    use super::*;
    #[repr(C)]
    pub struct Context {
        _private: [u8; 0],
    }
    extern "C" {
        pub fn spirals_context_create(num_threads: c_int) -> *mut Context;
        pub fn spirals_context_destroy(ctx: *mut Context) -> c_int;
        pub fn spirals_last_error(ctx: *const Context) -> *const c_char;
        pub fn spirals_load(ctx: *mut Context, path: *const c_char) -> c_int;
        pub fn spirals_set_hyper(ctx: *mut Context, name: *const c_char, value: c_double) -> c_int;
        pub fn spirals_call_step(ctx: *mut Context, x: *const f32, target: *const i64, loss: *mut f32) -> c_int;
    }
}

const BATCH: usize = 240;

struct Model(*mut ffi::Context);

impl Model {
    fn new(num_threads: c_int) -> Result<Self, String> {
        // SAFETY: the library may be called from any thread; a context by one at a time, which &mut self ensures below.
        let ctx = unsafe { ffi::spirals_context_create(num_threads) };
        let model = Model(ctx);
        if ctx.is_null() { Err(model.error()) } else { Ok(model) }
    }

    fn error(&self) -> String {
        unsafe { CStr::from_ptr(ffi::spirals_last_error(self.0)) }.to_string_lossy().into_owned()
    }

    fn check(&self, status: c_int) -> Result<(), String> {
        if status == 0 { Ok(()) } else { Err(self.error()) }
    }

    fn load(&mut self, path: &str) -> Result<(), String> {
        let path = CString::new(path).map_err(|e| e.to_string())?;
        let status = unsafe { ffi::spirals_load(self.0, path.as_ptr()) };
        self.check(status)
    }

    fn set_rate(&mut self, rate: f64) -> Result<(), String> {
        let status = unsafe { ffi::spirals_set_hyper(self.0, c"lr".as_ptr(), rate) };
        self.check(status)
    }

    /// One training step; returns the loss before the update.
    fn step(&mut self, x: &[[f32; 2]; BATCH], target: &[i64; BATCH]) -> Result<f32, String> {
        let mut loss = 0f32;
        let status = unsafe { ffi::spirals_call_step(self.0, x.as_ptr().cast(), target.as_ptr(), &mut loss) };
        self.check(status)?;
        Ok(loss)
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        unsafe { ffi::spirals_context_destroy(self.0) };
    }
}

fn two_spirals() -> ([[f32; 2]; BATCH], [i64; BATCH]) {
    let (mut x, mut target) = ([[0f32; 2]; BATCH], [0i64; BATCH]);
    for i in 0..BATCH {
        let turn = 1.5 * std::f64::consts::PI * (i / 2 + 1) as f64 / (BATCH / 2) as f64;
        let side = if i % 2 == 0 { 1.0 } else { -1.0 };
        x[i] = [(side * turn.cos() * turn / 5.0) as f32, (side * turn.sin() * turn / 5.0) as f32];
        target[i] = (i % 2) as i64;
    }
    (x, target)
}

fn main() -> Result<(), String> {
    let path = std::env::args().nth(1).unwrap_or_else(|| "parameters.safetensors".into());
    let (x, target) = two_spirals();
    let mut model = Model::new(0)?;
    model.load(&path)?;
    let mut loss = 0.0;
    for i in 0..400 {
        if i == 200 {
            model.set_rate(0.003)?;
        }
        loss = model.step(&x, &target)?;
        if i % 100 == 0 {
            println!("step {i:3}  loss {loss:.4}");
        }
    }
    println!("loss {loss:.4}");
    Ok(())
}
