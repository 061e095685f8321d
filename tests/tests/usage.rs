//! Wrong usage ends with exit code 1 and a sentence with a hint. Temporary failures are retried,
//! with a log line that has a hint, and the process continues without a restart once they are
//! fixed.

#[path = "usage/patience.rs"]
mod patience;
#[path = "usage/stage.rs"]
mod stage;

use std::net::TcpListener;
use std::path::Path;

use anyhow::{Result, ensure};
use data_encoding::BASE64URL_NOPAD;
use runnel_tests::ports::local;
use runnel_transport::identity::{Fingerprint, JOIN_PREFIX, JoinString, Token};

use stage::{Which, stage};

/// A word in a file that no message may repeat.
const SECRET: &str = "s3cr3t-of-the-file";

/// The expected text for each wrong call.
async fn prints(which: Which, arguments: &[&str], words: &[&str]) -> Result<()> {
    let output = stage().await?.fails(which, arguments).await?;
    for word in words {
        ensure!(
            output.contains(word),
            "{which:?} {arguments:?}: {word:?} is not in: {output}"
        );
    }
    ensure!(
        !output.contains(SECRET),
        "{which:?} {arguments:?} repeats what is in a file: {output}"
    );
    for unkind in [
        "Caused by",
        "backtrace",
        "panicked",
        "Error {",
        "os error 2) (",
    ] {
        ensure!(
            !output.contains(unkind),
            "{which:?} {arguments:?}: {output}"
        );
    }
    Ok(())
}

/// The error with its causes, in one line.
async fn fails_with_one_line(which: Which, arguments: &[&str], words: &[&str]) -> Result<()> {
    prints(which, arguments, words).await?;
    let output = stage().await?.fails(which, arguments).await?;
    ensure!(
        output.lines().count() == 1,
        "{which:?} {arguments:?}: more than a line: {output}"
    );
    ensure!(
        output.starts_with(which.name()),
        "{which:?} {arguments:?} does not say who it is: {output}"
    );
    Ok(())
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap_or_default()
}

#[tokio::test]
async fn unknown_flags_and_unreadable_values_are_refused() -> Result<()> {
    let help = "--help";
    prints(Which::Hub, &["run", "--bogus"], &["--bogus", help]).await?;
    prints(Which::Hub, &["bogus"], &["bogus", help]).await?;
    prints(
        Which::Hub,
        &["run", "--listen", "nowhere"],
        &["--listen", "nowhere", help],
    )
    .await?;
    prints(
        Which::Hub,
        &["run", "--advertise", "no port"],
        &["--advertise", "host:port", help],
    )
    .await?;
    prints(
        Which::Hub,
        &["run", "--source-gone-grace", "soon"],
        &["--source-gone-grace", "5s", help],
    )
    .await?;
    prints(
        Which::Hub,
        &["run", "--log-format", "xml"],
        &["--log-format", "text, json", help],
    )
    .await?;
    prints(Which::Agent, &["run", "--bogus"], &["--bogus", help]).await?;
    prints(Which::Agent, &["bogus"], &["bogus", help]).await?;
    prints(
        Which::Agent,
        &["run", "--ops-listen", "nowhere"],
        &["--ops-listen", "nowhere", help],
    )
    .await?;
    Ok(())
}

#[tokio::test]
async fn a_kubeconfig_that_cannot_be_used_is_named() -> Result<()> {
    let stage = stage().await?;
    let missing = stage.path("no-such-kubeconfig");
    let files = [
        stage.file(
            "garbage.kubeconfig",
            &format!("users: [{{name: x, user: {{token: {SECRET}\n"),
        )?,
        stage.file("wrong.kubeconfig", &format!("users: {SECRET}\n"))?,
        stage.file("empty.kubeconfig", "")?,
        missing,
    ];
    let join = stage.file("any-join-string", &any_join_string()?)?;
    for file in files {
        let kubeconfig = format!("--kubeconfig={}", text(&file));
        let words = ["--kubeconfig", text(&file)];
        fails_with_one_line(
            Which::Hub,
            &["run", &kubeconfig, "--listen=127.0.0.1:0", OPS],
            &words,
        )
        .await?;
        let token = ["token", "create", "eu-1", &kubeconfig];
        fails_with_one_line(Which::Hub, &token, &words).await?;
        let join = format!("--join-string-file={}", text(&join));
        fails_with_one_line(Which::Agent, &["run", &kubeconfig, &join, OPS], &words).await?;
    }
    // Neither a file nor a pod.
    fails_with_one_line(
        Which::Hub,
        &["run", "--listen=127.0.0.1:0", OPS],
        &["--kubeconfig"],
    )
    .await?;
    fails_with_one_line(Which::Agent, &["run", OPS], &["--kubeconfig"]).await
}

const OPS: &str = "--ops-listen=127.0.0.1:0";

#[tokio::test]
async fn a_port_that_is_in_use_is_named() -> Result<()> {
    let stage = stage().await?;
    let taken = TcpListener::bind(local(0))?;
    let address = taken.local_addr()?.to_string();
    let kubeconfig = format!("--kubeconfig={}", text(&stage.hub_account));
    let (listen, ops) = (
        format!("--listen={address}"),
        format!("--ops-listen={address}"),
    );
    fails_with_one_line(
        Which::Hub,
        &["run", &kubeconfig, &listen, OPS],
        &["--listen", &address, "in use"],
    )
    .await?;
    let hub = ["run", &kubeconfig, "--listen=127.0.0.1:0", &ops];
    fails_with_one_line(Which::Hub, &hub, &["--ops-listen", &address, "in use"]).await?;
    let kubeconfig = format!("--kubeconfig={}", text(&stage.agent_account));
    fails_with_one_line(
        Which::Agent,
        &["run", &kubeconfig, &ops],
        &["--ops-listen", &address, "in use"],
    )
    .await
}

fn any_join_string() -> Result<String> {
    let join = JoinString {
        addresses: vec!["127.0.0.1:1".to_owned()],
        hub: "somehub".to_owned(),
        cluster: "eu-1".to_owned(),
        token: Token::generate()?,
        pin: Fingerprint::of_key(b"any"),
    };
    Ok(join.encode())
}

#[tokio::test]
async fn a_join_string_that_is_none_is_explained() -> Result<()> {
    let stage = stage().await?;
    let good = any_join_string()?;
    let other_version = good.replace("-v1.", "-v9.");
    let no_json = format!("{JOIN_PREFIX}{}", BASE64URL_NOPAD.encode(SECRET.as_bytes()));
    let cases = [
        (SECRET.to_owned(), "not a join string"),
        (good[..good.len() - 7].to_owned(), "incomplete"),
        (good.replacen("-v1.", "-v1.?", 1), "damaged"),
        (other_version, "upgrade the agent"),
        (no_json, "damaged"),
        ("x".repeat(20_000), "too long"),
    ];
    let kubeconfig = format!("--kubeconfig={}", text(&stage.agent_account));
    for (content, words) in cases {
        let file = stage.file("bad-join-string", &content)?;
        let join = format!("--join-string-file={}", text(&file));
        let arguments = ["run", &kubeconfig, &join, OPS];
        prints(Which::Agent, &arguments, &[words, text(&file)]).await?;
    }
    for (arguments, words) in [
        (vec!["run", &kubeconfig, OPS], "runnel-hub token create"),
        (
            vec!["run", &kubeconfig, "--join-string-file=/no/such/file", OPS],
            "/no/such/file",
        ),
    ] {
        prints(Which::Agent, &arguments, &["--join-string-file", words]).await?;
    }
    let empty = stage.file("empty-join-string", "\n")?;
    let join = format!("--join-string-file={}", text(&empty));
    prints(
        Which::Agent,
        &["run", &kubeconfig, &join, OPS],
        &["empty", text(&empty)],
    )
    .await
}

#[tokio::test]
async fn a_token_that_cannot_be_made_is_explained() -> Result<()> {
    let stage = stage().await?;
    let kubeconfig = format!("--kubeconfig={}", text(stage.cluster.kubeconfig()));
    let create = |more: &[&'static str]| {
        let mut arguments = vec!["token".to_owned(), "create".to_owned(), kubeconfig.clone()];
        arguments.extend(more.iter().map(|argument| (*argument).to_owned()));
        arguments
    };
    let advertise = "--advertise=hub.example:8443";
    let cases: [(Vec<String>, &[&str]); 5] = [
        (create(&["Eu_1", advertise]), &["Eu_1"]),
        (create(&["eu-1", "--ttl=soon", advertise]), &["--ttl", "1h"]),
        (
            create(&["eu-1", "--label=nothing", advertise]),
            &["--label", "key=value"],
        ),
        (
            create(&["eu-1", "--advertise=nowhere"]),
            &["--advertise", "host:port"],
        ),
        (
            create(&["eu-1", "--namespace=kube-node-lease"]),
            &["--advertise"],
        ),
    ];
    for (arguments, words) in cases {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let output = stage.fails(Which::Hub, &arguments).await?.to_lowercase();
        for word in words {
            ensure!(
                output.contains(&word.to_lowercase()),
                "{arguments:?}: {word:?} is not in: {output}"
            );
        }
        ensure!(
            output.lines().count() == 1 && output.starts_with("runnel-hub: "),
            "{arguments:?}: {output}"
        );
    }
    Ok(())
}
