// PACKAGE is the folder that examples/export_step.py wrote; its static library goes into the program.
fn main() {
    let package = std::env::var("PACKAGE").expect("set PACKAGE to the exported folder");
    println!("cargo:rerun-if-env-changed=PACKAGE");
    println!("cargo:rerun-if-changed={package}/libspirals.a");
    println!("cargo:rustc-link-search=native={package}");
    println!("cargo:rustc-link-lib=static=spirals");
    println!("cargo:rustc-link-lib=m");
}
