//! Compiles the schema with protox, so that no `protoc` is needed.

use std::{env, error::Error, path::PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=tidegate");
    let descriptors = protox::compile(["tidegate/v1/client.proto", "tidegate/v1/record.proto"], ["."])?;
    let mut config = prost_build::Config::new();
    config
        .bytes(["."])
        .btree_map(["."])
        .extern_path(".tidegate.v1.Content", "crate::content::Content")
        .out_dir(PathBuf::from(env::var("OUT_DIR")?));
    config.compile_fds(descriptors)?;
    Ok(())
}
