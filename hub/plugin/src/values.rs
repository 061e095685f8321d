//! Converts flags into chart values and arguments for helm.
use serde_json::{Map, Value, json};

use super::args::{self, ChartValues};

/// The arguments of one `helm upgrade --install`.
#[derive(Debug)]
pub struct HelmInstall<'a> {
    /// The chart, which is the release's name as well.
    pub chart: &'static str,
    /// The namespace.
    pub namespace: &'a str,
    /// The values from flags of this plugin.
    pub values: Value,
    /// The user's values.
    pub given: &'a ChartValues,
    /// Wait until it is ready, for at most this long.
    pub wait: Option<String>,
}

impl HelmInstall<'_> {
    /// The arguments: flags of this plugin win over files of values, and `--set` over both.
    pub fn arguments(&self, chart: &str, own: &str) -> Vec<String> {
        let mut arguments: Vec<String> = [
            "upgrade",
            "--install",
            self.chart,
            chart,
            "--namespace",
            self.namespace,
            "--create-namespace",
        ]
        .map(str::to_owned)
        .to_vec();
        arguments.push(
            if self.given.reset_values {
                "--reset-values"
            } else {
                "--reset-then-reuse-values"
            }
            .to_owned(),
        );
        for file in &self.given.files {
            arguments.extend(["--values".to_owned(), file.to_string_lossy().into_owned()]);
        }
        arguments.extend(["--values".to_owned(), own.to_owned()]);
        for set in &self.given.set {
            arguments.extend(["--set".to_owned(), set.clone()]);
        }
        if let Some(limit) = &self.wait {
            arguments.extend(["--wait".to_owned(), "--timeout".to_owned(), limit.clone()]);
        }
        arguments.extend(["--output".to_owned(), "json".to_owned()]);
        arguments
    }
}

/// Returns the values of the flags of `install`.
pub fn of_hub(install: &args::InstallArgs) -> Value {
    let mut values = common(&install.values);
    put_list(&mut values, "advertise", &install.advertise);
    put_list(&mut values, "sourceNamespaces", &install.source_namespaces);
    if let Some(replicas) = install.replicas {
        values.insert("replicas".to_owned(), json!(replicas));
    }
    if let Some(kind) = &install.service_type {
        values.insert("service".to_owned(), json!({"type": kind}));
    }
    Value::Object(values)
}

/// Returns the values of the flags of `join`; the join string is in the Secret of that name.
pub fn of_agent(join: &args::Join, secret: &str) -> Value {
    let mut values = common(&join.values);
    values.insert("join".to_owned(), json!({"existingSecret": secret}));
    let mut policy = Map::new();
    put_list(&mut policy, "namespaces", &join.namespaces);
    put_list(&mut policy, "deniedNamespaces", &join.denied_namespaces);
    if join.create_namespaces {
        policy.insert("createNamespaces".to_owned(), json!(true));
    }
    if !policy.is_empty() {
        values.insert("policy".to_owned(), Value::Object(policy));
    }
    if let Some(proxy) = &join.https_proxy {
        values.insert("proxy".to_owned(), json!({"httpsProxy": proxy}));
    }
    Value::Object(values)
}

fn common(given: &ChartValues) -> Map<String, Value> {
    let mut values = Map::new();
    let mut image = Map::new();
    for (name, value) in [
        ("registry", &given.image_registry),
        ("tag", &given.image_tag),
    ] {
        if let Some(value) = value {
            image.insert(name.to_owned(), json!(value));
        }
    }
    if !image.is_empty() {
        values.insert("image".to_owned(), Value::Object(image));
    }
    if !given.image_pull_secrets.is_empty() {
        let secrets: Vec<Value> = given
            .image_pull_secrets
            .iter()
            .map(|name| json!({"name": name}))
            .collect();
        values.insert("imagePullSecrets".to_owned(), json!(secrets));
    }
    values
}

fn put_list(values: &mut Map<String, Value>, name: &str, list: &[String]) {
    if !list.is_empty() {
        values.insert(name.to_owned(), json!(list));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;

    fn parsed(words: &str) -> Command {
        Cli::try_parse_from(words.split(' ')).unwrap().command
    }

    #[test]
    fn flags_become_values() {
        let words = "x install --advertise a:1,b:2 --replicas 3 --service-type NodePort --image-registry r --image-pull-secret s";
        let Command::Install(install) = parsed(words) else {
            unreachable!()
        };
        let expected = json!({
            "advertise": ["a:1", "b:2"], "replicas": 3, "service": {"type": "NodePort"},
            "image": {"registry": "r"}, "imagePullSecrets": [{"name": "s"}],
        });
        assert_eq!(of_hub(&install), expected);
        let Command::Join(join) =
            parsed("x join eu-1 --namespaces a,b --create-namespaces --https-proxy http://p:1")
        else {
            unreachable!()
        };
        let expected = json!({
            "join": {"existingSecret": "s"}, "proxy": {"httpsProxy": "http://p:1"},
            "policy": {"namespaces": ["a", "b"], "createNamespaces": true},
        });
        assert_eq!(of_agent(&join, "s"), expected);
        let Command::Install(install) = parsed("x install") else {
            unreachable!()
        };
        assert_eq!(of_hub(&install), json!({}));
    }

    #[test]
    fn set_wins_over_flags_and_flags_over_files() {
        let Command::Install(given) = parsed("x install -f mine.yaml --set a=1") else {
            unreachable!()
        };
        let install = HelmInstall {
            chart: "runnel-hub",
            namespace: "n",
            values: json!({}),
            given: &given.values,
            wait: Some("5m".to_owned()),
        };
        assert_eq!(
            install.arguments("/c", "/own").join(" "),
            "upgrade --install runnel-hub /c --namespace n --create-namespace --reset-then-reuse-values \
             --values mine.yaml --values /own --set a=1 --wait --timeout 5m --output json"
        );
    }
}
