//! `kubectl runnel doctor`: collects the input of the checks.
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use runnel_transport::identity::{Fingerprint, is_address};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::access::Cluster;
use super::args;
use super::checks::{self, Check, Level, Report};
use super::diagnose::Reachability;
use super::helm::{self, HUB, Helm};
use super::progress::colors;
use super::{CommandContext, FAILED, ended, for_machines, hints, print, read_cluster, rights};
use runnel_hub::ca::IDENTITY_SECRET;

/// The oldest helm with `--reset-then-reuse-values`.
const HELM: (u32, u32) = (3, 14);

/// Runs common health checks.
pub(super) async fn run(
    session: &CommandContext<'_>,
    options: &args::Doctor,
) -> anyhow::Result<()> {
    let namespace = session.system();
    let mut report = Report {
        installation: vec![helm().await],
        rules: Vec::new(),
    };
    match session.hub().await {
        Ok(hub) => of_hub(&hub, namespace, &mut report).await,
        Err(error) => report.installation.push(Check::fail(
            format!("{error:#}"),
            "name the hub: --kubeconfig FILE, --context NAME",
        )),
    }
    match for_machines(options.output, &report.as_json())? {
        Some(text) => print(&text)?,
        None => print(&report.text(colors()))?,
    }
    if report.has_failed(options.rules) {
        Err(ended(FAILED, ""))
    } else {
        Ok(())
    }
}

async fn helm() -> Check {
    let hint = "install helm 3.14 or newer: https://helm.sh/docs/intro/install";
    let binary = match Helm::binary() {
        Ok(binary) => binary,
        Err(error) => {
            return Check::warn(
                error.to_string(),
                "only install, join and uninstall need it",
            );
        }
    };
    let version = match helm::version(&binary).await {
        Ok(version) => version,
        Err(error) => return Check::warn(format!("{error:#}"), hint),
    };
    let mut parts = version
        .trim_start_matches('v')
        .split('.')
        .map(|part| part.parse::<u32>().unwrap_or_default());
    let read = (
        parts.next().unwrap_or_default(),
        parts.next().unwrap_or_default(),
    );
    if read < HELM {
        return Check::warn(
            format!("helm {version} is too old ({})", binary.display()),
            hint,
        );
    }
    Check::ok(format!("helm {version} ({})", binary.display()))
}

async fn of_hub(hub: &Cluster, namespace: &str, report: &mut Report) {
    let now = Timestamp::now();
    let found = &mut report.installation;
    let clock = match hub.clock().await {
        Ok(clock) => clock,
        Err(error) => {
            found.push(Check::fail(
                format!("{error:#}"),
                "without it nothing else can be checked",
            ));
            return;
        }
    };
    found.extend([
        Check::ok(format!("{} answers", hub.place)),
        checks::clocks(clock, now),
    ]);
    found.extend(rights_of(hub, namespace).await);
    found.extend(crds(hub).await);
    let served = !found.iter().any(|check| check.level == Level::Fail);
    let lease = match read_cluster::lease(hub, namespace).await {
        // By the API server's clock, as the hub that renews it may be elsewhere.
        Ok(lease) => checks::lease(lease.as_ref(), clock.unwrap_or(now)),
        Err(error) => unread(&error),
    };
    let pods = read_cluster::workload(hub, HUB, namespace).await;
    let pods = reported(pods.map(|seen| checks::hub(&seen, namespace)));
    found.extend(Report::pods_of_leader(pods, &lease));
    found.push(lease);
    found.extend(reported(identity(hub, namespace, now).await));
    if served {
        let members = read_cluster::members(hub).await;
        found.extend(reported(match members {
            Ok(all) => {
                let mut checks = checks::members(&all, now);
                let path = format!("{}/memberrecords", read_cluster::API);
                let records = hub.list("list the MemberRecords", &path).await;
                let pending = records.map(|records| checks::pending_removals(&all, &records));
                checks.extend(reported(pending));
                Ok(checks)
            }
            Err(error) => Err(error),
        }));
        let rules = read_cluster::rules(hub, None).await;
        report.rules = reported(rules.map(|rules| checks::rules(&rules)));
    }
}

fn unread(error: &anyhow::Error) -> Check {
    Check::warn(format!("{error:#}"), "this could not be checked")
}

fn reported(outcome: anyhow::Result<Vec<Check>>) -> Vec<Check> {
    outcome.unwrap_or_else(|error| vec![unread(&error)])
}

async fn rights_of(hub: &Cluster, namespace: &str) -> Vec<Check> {
    let mut all = rights::join_hub(namespace, false);
    all.extend(
        rights::unjoin()
            .into_iter()
            .filter(|right| right.verb == "delete"),
    );
    all.extend(rights::install(namespace));
    let asked = hub.missing(&all).await;
    reported(asked.map(|missing| vec![checks::rights(&missing, all.len())]))
}

async fn crds(hub: &Cluster) -> Vec<Check> {
    let own = runnel_api::crds();
    let mut there = Vec::new();
    for wanted in &own {
        let name = wanted.metadata.name.as_deref().unwrap_or_default();
        let path = format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}");
        let found = hub.get::<CustomResourceDefinition>("read the CRDs", &path);
        match found.await {
            Ok(found) => there.extend(found),
            Err(error) => return reported(Err(error)),
        }
    }
    checks::crds(&there, &own)
}

/// Checks the hub's identity: the validity of its CA, and its advertised addresses.
async fn identity(hub: &Cluster, namespace: &str, now: Timestamp) -> anyhow::Result<Vec<Check>> {
    let path = format!("/api/v1/namespaces/{namespace}/secrets/{IDENTITY_SECRET}");
    let Some(secret) = hub
        .get::<Secret>(
            &format!("read the Secret {namespace}/{IDENTITY_SECRET}"),
            &path,
        )
        .await?
    else {
        return Ok(vec![Check::fail(
            format!(
                "the Secret {namespace}/{IDENTITY_SECRET} is not there: no hub has run here yet"
            ),
            "it is created when the hub first starts; if it was lost, restore it from a backup, otherwise every member must join again",
        )]);
    };
    let entry = |name: &str| -> Vec<u8> {
        let data = secret.data.as_ref();
        data.and_then(|data| data.get(name))
            .map(|content| content.0.clone())
            .unwrap_or_default()
    };
    let mut found = Vec::new();
    let certificate = CertificateDer::from_pem_slice(&entry("tls.crt")).ok();
    let Some(certificate) = certificate else {
        let hint = "restore it from a backup";
        return Ok(vec![Check::fail(
            format!("the Secret {namespace}/{IDENTITY_SECRET} has no usable tls.crt"),
            hint,
        )]);
    };
    if let Ok((_, read)) = x509_parser::parse_x509_certificate(&certificate)
        && let Ok(ends) = Timestamp::from_second(read.validity().not_after.timestamp())
    {
        found.push(checks::ca(ends, now));
    }
    let addresses = String::from_utf8(entry("addresses")).unwrap_or_default();
    let id = String::from_utf8(entry("hub-id")).unwrap_or_default();
    let addresses = addresses
        .split_whitespace()
        .filter(|address| is_address(address));
    let mut seen = Vec::new();
    for address in addresses {
        let reach = match Fingerprint::of_certificate(&certificate) {
            Ok(pin) => read_cluster::one(address, pin, &id).await,
            Err(error) => Reachability::Other(hints::error_chain(&error)),
        };
        seen.push((address.to_owned(), reach));
    }
    found.extend(checks::addresses(&seen));
    Ok(found)
}
