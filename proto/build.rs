//! Generates the messages of `sync.proto` and `query.proto`, without `protoc`.
fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=sync.proto");
    println!("cargo:rerun-if-changed=query.proto");
    let descriptors = protox::compile(["sync.proto", "query.proto"], ["."])?;
    // What holds content, a token or a key gets its `Debug` by hand, in `wire`, without it.
    tonic_prost_build::configure()
        .build_client(false)
        .build_server(false)
        .bytes(".runnel.v1")
        .skip_debug([
            ".runnel.v1.Intent",
            ".runnel.v1.JoinRequest",
            ".runnel.v1.SnapshotBegin",
        ])
        .compile_fds(descriptors)?;
    Ok(())
}
