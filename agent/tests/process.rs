//! The process: wrong usage ends it with one sentence, and what can pass by itself does not.
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

fn agent() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_runnel-agent"));
    command
        .env_clear()
        .args(["run", "--ops-listen", "127.0.0.1:0"])
        .stdin(Stdio::null());
    command
}

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("runnel-agent-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a temporary folder");
        Self(path)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).expect("a temporary file");
        path
    }

    /// A kubeconfig of a cluster that does not answer.
    fn kubeconfig(&self) -> PathBuf {
        let port = TcpListener::bind("127.0.0.1:0")
            .and_then(|free| free.local_addr())
            .expect("a free port")
            .port();
        let cluster = format!("{{name: c, cluster: {{server: 'http://127.0.0.1:{port}'}}}}");
        let context = "{name: c, context: {cluster: c, user: u}}";
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{cluster}]\ncontexts: [{context}]\nusers: [{{name: u, user: {{}}}}]\n"
        );
        self.write("kubeconfig", &text)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn with_files(kubeconfig: &Path, join_string: &Path) -> Command {
    let mut command = agent();
    command
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .arg("--join-string-file")
        .arg(join_string);
    command
}

fn refused(output: &Output, parts: &[&str]) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    let last = text.lines().last().unwrap_or_default();
    for part in parts {
        assert!(last.contains(part), "{part:?} is not in {last:?}");
    }
}

#[test]
fn wrong_usage_ends_with_one_sentence_and_a_hint() {
    let folder = Folder::new("usage");
    let (kubeconfig, good) = (folder.kubeconfig(), folder.write("empty", ""));

    let missing = folder.0.join("missing");
    refused(
        &with_files(&missing, &good).output().unwrap(),
        &["missing", "--kubeconfig"],
    );
    let nonsense = folder.write("nonsense", "{{{");
    refused(
        &with_files(&nonsense, &good).output().unwrap(),
        &["nonsense", "--kubeconfig"],
    );

    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut command = with_files(&kubeconfig, &good);
    command
        .arg("--ops-listen")
        .arg(taken.local_addr().unwrap().to_string());
    let mut command = {
        // The last of two equal flags would be an error of its own.
        let mut again = Command::new(env!("CARGO_BIN_EXE_runnel-agent"));
        again
            .env_clear()
            .arg("run")
            .args(command.get_args().skip(3));
        again
    };
    refused(&command.output().unwrap(), &["in use", "--ops-listen"]);

    let mut outside = agent();
    refused(&outside.output().unwrap(), &["--kubeconfig"]);
    let unknown = agent().arg("--unknown").output().unwrap();
    assert_eq!(unknown.status.code(), Some(1));
}

/// Waits for these texts in the log, and ends the agent by a signal.
fn logs_and_ends(mut command: Command, log: &Path, texts: &[&str]) {
    let mut child = command
        .stderr(std::fs::File::create(log).expect("a log"))
        .spawn()
        .expect("a process");
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let written = std::fs::read_to_string(log).expect("a log");
        if texts.iter().all(|text| written.contains(text)) {
            break;
        }
        assert!(
            Instant::now() < deadline,
            "not all of {texts:?} is in {written}"
        );
        assert_eq!(child.try_wait().expect("a process"), None, "it ended");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(
        Command::new("kill")
            .arg(child.id().to_string())
            .status()
            .expect("kill")
            .success()
    );
    assert_eq!(child.wait().expect("a process").code(), Some(0));
}

#[test]
fn absent_api_server_is_awaited_and_a_signal_ends_the_wait() {
    let folder = Folder::new("wait");
    let command = with_files(&folder.kubeconfig(), &folder.write("empty", ""));
    logs_and_ends(
        command,
        &folder.write("log", ""),
        &["waiting for this cluster's API server"],
    );
}

#[test]
fn malformed_join_string_is_logged_without_an_api_server() {
    let folder = Folder::new("malformed");
    let command = with_files(&folder.kubeconfig(), &folder.write("joined", "hello"));
    logs_and_ends(
        command,
        &folder.write("log", ""),
        &["joined", "not a join string", "token create"],
    );
}
