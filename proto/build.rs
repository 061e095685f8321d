//! Generates the messages of `sync.proto`, without `protoc`.
fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=sync.proto");
    let descriptors = protox::compile(["sync.proto"], ["."])?;
    // Types with content, tokens or keys get a manual `Debug` in `wire`, without those.
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
