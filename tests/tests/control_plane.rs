//! The harness itself: a control plane is real, is counted right, and nothing outlives its test.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{DeleteParams, ObjectMeta, PostParams};
use kube::{Api, Client};
use runnel_tests::assets::{AssetFolders, Assets, KUBERNETES_VERSION};
use runnel_tests::audit::Write;
use runnel_tests::control_plane::{ControlPlane, Options, client_of};
use runnel_tests::guard::Program;
use runnel_tests::memory::{Enforcement, MemoryLimit};
use runnel_tests::restartable::Restartable;
use runnel_tests::scratch::Scratch;
use runnel_tests::wait::{eventually, timed_out};
use tokio::sync::OnceCell;

const SOON: Duration = Duration::from_secs(20);
const PARENT_FOLDER: &str = "RUNNEL_TEST_PARENT_FOLDER";

static SHARED: OnceCell<ControlPlane> = OnceCell::const_new();

async fn shared() -> Result<&'static ControlPlane> {
    SHARED
        .get_or_try_init(|| ControlPlane::start("shared", Options::default()))
        .await
}

fn config_map(name: &str, value: &str) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        },
        data: Some(BTreeMap::from([("key".to_owned(), value.to_owned())])),
        ..ConfigMap::default()
    }
}

async fn new_namespace(client: &Client, name: &str) -> Result<()> {
    let metadata = ObjectMeta {
        name: Some(name.to_owned()),
        ..ObjectMeta::default()
    };
    let namespace = Namespace {
        metadata,
        ..Namespace::default()
    };
    Api::<Namespace>::all(client.clone())
        .create(&PostParams::default(), &namespace)
        .await?;
    Ok(())
}

#[tokio::test]
async fn kubectl_and_server_have_the_pinned_version() -> Result<()> {
    let printed = shared().await?.kubectl(&["version"]).await?;
    for side in ["Client", "Server"] {
        ensure!(
            printed.contains(&format!("{side} Version: v{KUBERNETES_VERSION}")),
            "kubectl version said:\n{printed}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn failed_kubectl_reports_its_output() -> Result<()> {
    let failed = shared()
        .await?
        .kubectl(&["get", "configmap", "nowhere"])
        .await;
    let message = failed
        .err()
        .context("there is no such ConfigMap")?
        .to_string();
    ensure!(
        message.contains(r#"configmaps "nowhere" not found"#),
        "{message}"
    );
    Ok(())
}

#[tokio::test]
async fn a_config_map_that_kubectl_applied_is_read_back() -> Result<()> {
    let cluster = shared().await?;
    let yaml =
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: round-trip}\ndata: {key: value}\n";
    cluster.kubectl_stdin(&["apply", "-f", "-"], yaml).await?;
    let config_maps: Api<ConfigMap> = Api::namespaced(cluster.client().await?, "default");
    let found = config_maps.get("round-trip").await?;
    ensure!(
        found.data == config_map("round-trip", "value").data,
        "{found:?}"
    );
    Ok(())
}

#[tokio::test]
async fn a_deleted_namespace_goes_away_with_its_content() -> Result<()> {
    let client = shared().await?.client().await?;
    new_namespace(&client, "short-lived").await?;
    let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), "short-lived");
    config_maps
        .create(&PostParams::default(), &config_map("inside", "value"))
        .await?;
    let namespaces: Api<Namespace> = Api::all(client);
    namespaces
        .delete("short-lived", &DeleteParams::default())
        .await?;
    eventually("the end of the namespace", SOON, async || {
        Ok(namespaces
            .get_opt("short-lived")
            .await?
            .is_none()
            .then_some(()))
    })
    .await
}

#[tokio::test]
async fn every_write_is_in_the_audit_log_as_soon_as_it_is_answered() -> Result<()> {
    let cluster = shared().await?;
    let client = cluster.client().await?;
    new_namespace(&client, "audited").await?;
    let config_maps: Api<ConfigMap> = Api::namespaced(client, "audited");
    for number in 0..50 {
        let name = format!("written-{number}");
        let mark = cluster.mark();
        config_maps
            .create(
                &PostParams::default(),
                &config_map(&name, &"x".repeat(50_000)),
            )
            .await?;
        config_maps.get(&name).await?;
        let writes: Vec<Write> = cluster
            .writes_since(mark)?
            .into_iter()
            .filter(|write| write.name == name)
            .collect();
        let [write] = writes.as_slice() else {
            bail!("one write became {writes:?}")
        };
        ensure!(
            write.verb == "create" && write.resource == "configmaps" && write.code == 201,
            "{write:?}"
        );
        ensure!(
            write.namespace == "audited" && write.user == "administrator",
            "{write:?}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn a_service_account_has_only_its_own_permissions() -> Result<()> {
    let cluster = shared().await?;
    new_namespace(&cluster.client().await?, "limited").await?;
    cluster
        .kubectl(&["create", "serviceaccount", "reader", "--namespace=limited"])
        .await?;
    let view = [
        "create",
        "rolebinding",
        "view",
        "--clusterrole=view",
        "--serviceaccount=limited:reader",
    ];
    cluster
        .kubectl(&[view.as_slice(), &["--namespace=limited"]].concat())
        .await?;
    let client = client_of(&cluster.token_kubeconfig("limited", "reader").await?).await?;
    let config_maps: Api<ConfigMap> = Api::namespaced(client, "limited");
    eventually("the permission to list", SOON, async || {
        Ok(Some(config_maps.list(&Default::default()).await?))
    })
    .await?;
    let mark = cluster.mark();
    let refused = config_maps
        .create(&PostParams::default(), &config_map("refused", "value"))
        .await;
    ensure!(
        matches!(&refused, Err(kube::Error::Api(status)) if status.code == 403),
        "{refused:?}"
    );
    let writes = cluster.writes_since(mark)?;
    let user = "system:serviceaccount:limited:reader";
    ensure!(
        writes
            .iter()
            .any(|write| write.user == user && write.code == 403),
        "{writes:?}"
    );
    Ok(())
}

#[tokio::test]
async fn restarted_api_server_keeps_its_state() -> Result<()> {
    let cluster = ControlPlane::start("restarted", Options::default()).await?;
    let config_maps: Api<ConfigMap> = Api::namespaced(cluster.client().await?, "default");
    config_maps
        .create(&PostParams::default(), &config_map("kept", "value"))
        .await?;
    let mark = cluster.mark();
    cluster.stop_api_server()?;
    ensure!(
        config_maps.get("kept").await.is_err(),
        "a killed API server answers"
    );
    cluster.start_api_server().await?;
    let config_maps: Api<ConfigMap> = Api::namespaced(cluster.client().await?, "default");
    config_maps.get("kept").await?;
    config_maps.delete("kept", &DeleteParams::default()).await?;
    let deleted = cluster
        .writes_since(mark)?
        .into_iter()
        .filter(|write| write.verb == "delete")
        .count();
    ensure!(deleted == 1, "{deleted} deletes");
    let folder = cluster.folder().to_owned();
    cluster.shutdown().await?;
    ensure!(!folder.exists(), "{} is still there", folder.display());
    Ok(())
}

#[test]
fn incomplete_kubebuilder_assets_are_named_with_a_hint() -> Result<()> {
    let folder = Scratch::new("assets")?;
    for part in ["etcd", "kube-apiserver", "kubectl"] {
        std::fs::write(folder.path().join(part), "")?;
    }
    let places = AssetFolders {
        given: Some(folder.path().to_owned()),
        cache: folder.path().join("cache"),
        go: "go".into(),
    };
    let message = Assets::find_in(&places)
        .err()
        .context("a part is missing")?
        .to_string();
    ensure!(
        message.contains("has no kube-controller-manager: point it at"),
        "{message}"
    );
    std::fs::write(folder.path().join("kube-controller-manager"), "")?;
    ensure!(
        Assets::find_in(&places)?.kubectl() == folder.path().join("kubectl"),
        "another kubectl"
    );
    Ok(())
}

#[test]
fn machine_without_go_gets_an_install_hint() -> Result<()> {
    let folder = Scratch::new("assets")?;
    let places = AssetFolders {
        given: None,
        cache: folder.path().to_owned(),
        go: folder.path().join("go"),
    };
    let message = Assets::find_in(&places)
        .err()
        .context("there is no Go")?
        .to_string();
    ensure!(
        message.contains("install Go 1.26") && message.contains("KUBEBUILDER_ASSETS"),
        "{message}"
    );
    Ok(())
}

fn shell(folder: &Path, script: &str) -> Restartable {
    let program = Program::new("/bin/sh", folder.join("shell.log")).arguments(["-c", script]);
    Restartable::new("a shell", program)
}

#[tokio::test]
async fn guarded_program_reports_its_exit() -> Result<()> {
    let folder = Scratch::new("guard")?;
    let alone = shell(folder.path(), "echo said; exit 7");
    alone.start()?;
    let code = eventually("the end", SOON, async || Ok(alone.exit_code())).await?;
    ensure!(code == 7 && !alone.is_running(), "exit code {code}");
    let message = alone.check().err().context("it has ended")?.to_string();
    ensure!(
        message.contains("exit code 7") && message.ends_with("said"),
        "{message}"
    );

    let polite = shell(
        folder.path(),
        "trap 'exit 3' TERM; echo ready; while :; do sleep 0.05; done",
    );
    polite.start()?;
    eventually("the trap", SOON, async || {
        Ok(polite.last_words().ends_with("ready").then_some(()))
    })
    .await?;
    ensure!(polite.start().is_err(), "it runs twice");
    ensure!(polite.terminate(SOON).await? == 3, "another exit code");

    let stubborn = shell(
        folder.path(),
        "trap '' TERM; echo deaf; while :; do sleep 0.05; done",
    );
    stubborn.start()?;
    eventually("the trap", SOON, async || {
        Ok(stubborn.last_words().ends_with("deaf").then_some(()))
    })
    .await?;
    stubborn.pause()?;
    ensure!(stubborn.is_running(), "a frozen program runs");
    stubborn.resume()?;
    ensure!(
        stubborn
            .terminate(Duration::from_millis(200))
            .await
            .is_err(),
        "it was killed, not polite"
    );
    Ok(())
}

/// Enough time for [`GREEDY`] beside other tests: it takes seconds of processor time.
const READS: Duration = Duration::from_secs(120);
/// Reads 200 MB into a variable, which bash keeps in memory.
const GREEDY: &str = "echo begins; x=$(head -c 200000000 /dev/zero | tr '\\0' x); echo has ${#x}";

#[tokio::test]
async fn process_at_its_memory_limit_is_reported() -> Result<()> {
    let folder = Scratch::new("memory")?;
    let limited = |name: &str, mebibytes: u64| {
        let limit = MemoryLimit {
            bytes: mebibytes << 20,
            enforcement: Enforcement::Always,
        };
        let program = Program::new("/bin/bash", folder.path().join(name)).arguments(["-c", GREEDY]);
        Restartable::new(name, program.memory_limit(limit))
    };
    let large = limited("large", 2000);
    large.start()?;
    let code = eventually("the end", READS, async || Ok(large.exit_code())).await?;
    ensure!(
        code == 0 && large.last_words().ends_with("has 200000000"),
        "{code}: {}",
        large.last_words()
    );

    let small = limited("small", 60);
    small.start()?;
    eventually("the end", READS, async || Ok(small.exit_code())).await?;
    let message = small.check().err().context("it has ended")?.to_string();
    // Without root it is the allocation that fails, and how a program ends then is its own affair.
    if rustix::process::getuid().is_root() {
        ensure!(
            message.contains("the kernel killed it at its memory limit of 60 MiB"),
            "{message}"
        );
        ensure!(
            small.start().is_err() && small.kill().is_err(),
            "the kill can be hidden"
        );
        // A wait that fails would keep the folders of the tests that run at the same time.
        let error = timed_out("nothing", SOON, anyhow!("no answer")).to_string();
        ensure!(error.contains("memory limit of 60 MiB"), "{error}");
    }
    ensure!(
        !small.last_words().ends_with("has 200000000"),
        "the limit did not hold"
    );
    Ok(())
}

#[tokio::test]
async fn running_process_reports_its_peak_memory() -> Result<()> {
    let folder = Scratch::new("memory")?;
    let program = Program::new("/bin/bash", folder.path().join("peak"));
    let script = "x=$(head -c 40000000 /dev/zero | tr '\\0' x); x=; echo done; sleep 600; exit";
    let process = Restartable::new("a shell", program.arguments(["-c", script]));
    ensure!(
        process.peak_memory().is_err(),
        "a process that does not run has a peak"
    );
    process.start()?;
    eventually("the peak", SOON, async || {
        Ok(process.last_words().ends_with("done").then_some(()))
    })
    .await?;
    let peak = process.peak_memory()?;
    ensure!((40_000_000..1_000_000_000).contains(&peak), "{peak}");
    Ok(())
}

#[test]
fn a_program_that_does_not_exist_is_named() -> Result<()> {
    let folder = Scratch::new("guard")?;
    let message = Program::new("/nowhere/at-all", folder.path().join("log")).start();
    let message = message.err().context("it started")?.to_string();
    ensure!(message.contains("/nowhere/at-all"), "{message}");
    Ok(())
}

#[tokio::test]
async fn nothing_outlives_a_test_run_that_is_killed() -> Result<()> {
    let folder = Scratch::new("guard")?;
    let mut parent = Command::new(std::env::current_exe()?)
        .args(["--ignored", "--exact", "the_parent_in_another_test"])
        .env(PARENT_FOLDER, folder.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let found = folder.path().join("found");
    let printed = eventually("the parent's word", SOON, async || {
        Ok(Some(std::fs::read_to_string(&found)?))
    })
    .await;
    // Another test may remove the folder as soon as the parent has ended.
    let folder_of = |printed: &str| printed.split_once(' ').map(|(_, left)| PathBuf::from(left));
    let had_folder = printed.as_deref().ok().and_then(folder_of);
    let had_folder = had_folder.is_some_and(|left| left.exists());
    parent.kill()?;
    parent.wait()?;
    let printed = printed?;
    let (pid, left) = printed.split_once(' ').context("two words")?;
    let left = PathBuf::from(left);
    ensure!(had_folder, "the parent had no folder");
    eventually("the end of the child", SOON, async || {
        Ok(has_ended(pid)?.then_some(()))
    })
    .await?;
    drop(Scratch::new("next")?);
    ensure!(
        !left.exists(),
        "the next test run has not removed {}",
        left.display()
    );
    Ok(())
}

#[test]
#[ignore = "the killed part of nothing_outlives_a_test_run_that_is_killed"]
fn the_parent_in_another_test() -> Result<()> {
    let Some(folder) = std::env::var_os(PARENT_FOLDER).map(PathBuf::from) else {
        return Ok(());
    };
    let left = Scratch::new("left-behind")?;
    let child = Program::new("/bin/sh", folder.join("child.log"))
        .arguments(["-c", "sleep 600 & wait"])
        .start()?;
    std::fs::write(
        folder.join("word"),
        format!("{} {}", child.pid(), left.path().display()),
    )?;
    std::fs::rename(folder.join("word"), folder.join("found"))?;
    loop {
        std::thread::park();
    }
}

// A dead process whose parent does not read its exit code stays in the list as a zombie.
fn has_ended(pid: &str) -> Result<bool> {
    let output = Command::new("ps")
        .args(["-o", "stat=", "-p", pid])
        .output()
        .context("cannot run ps")?;
    let state = String::from_utf8(output.stdout)?;
    Ok(state.trim().is_empty() || state.starts_with('Z'))
}
