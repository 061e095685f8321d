//! Generates the wire types from `sync.proto`, without `protoc`.
fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=sync.proto");
    let descriptors = protox::compile(["sync.proto"], ["."])?;
    tonic_prost_build::configure().bytes(".runnel.v1").compile_fds(descriptors)?;
    Ok(())
}
