//! Generates the gRPC clients and servers of `sync.proto`, without `protoc`. The messages are in `runnel_proto::wire`.
fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=../sync.proto");
    let descriptors = protox::compile(["sync.proto"], [".."])?;
    tonic_prost_build::configure()
        .extern_path(".runnel.v1", "::runnel_proto::wire")
        .compile_fds(descriptors)?;
    Ok(())
}
