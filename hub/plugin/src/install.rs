//! `kubectl runnel install`: the hub.
use std::time::Duration;

use anyhow::anyhow;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use runnel_api::MemberCluster;
use runnel_transport::identity::is_address;

use super::access::Cluster;
use super::args::{self, ChartValues};
use super::checks::{crd_message, is_established};
use super::helm::{self, HUB, Helm};
use super::objects::Rule;
use super::progress::Progress;
use super::values::{self, HelmInstall};
use super::{CommandContext, TIMED_OUT, ended, note, parse, print, read_cluster, rights, usage};

/// CRDs are served soon after they are made.
const SERVED: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Installs or upgrades the hub.
pub(super) async fn run(
    session: &CommandContext<'_>,
    options: &args::InstallArgs,
) -> anyhow::Result<()> {
    if options.values.show_values {
        return print(&helm::shown_values(session.charts, HUB)?);
    }
    check(&options.values, &options.advertise)?;
    let timeout = parse::duration("--timeout", &options.timeout).map_err(usage)?;
    let namespace = session.system();
    let helm = Helm::unpack(session.charts)?;
    let hub = session.hub().await?;
    hub.require("install Runnel", &rights::install(namespace))
        .await?;
    let progress = Progress::start(&format!("installing {}", hub.place));
    let install = HelmInstall {
        chart: HUB,
        namespace,
        values: values::of_hub(options),
        given: &options.values,
        wait: options
            .wait
            .then(|| format!("{}s", timeout.as_secs().max(1))),
    };
    let installed = helm.install(&hub, &install).await;
    let took = progress.elapsed();
    progress.end();
    let notes = installed?;
    served(&hub).await?;
    note(&format!(
        "Installed {} in {}.",
        hub.place,
        parse::duration_text(took)
    ));
    print(&format!("{notes}\n"))
}

/// Validates the arguments before anything is changed.
pub(super) fn check(values: &ChartValues, advertise: &[String]) -> anyhow::Result<()> {
    if let Some(wrong) = advertise.iter().find(|address| !is_address(address)) {
        return Err(usage(format!(
            "--advertise `{wrong}` is not an address: write host:port, such as hub.example.com:8443"
        )));
    }
    helm::check_files(values).map_err(|error| usage(error.to_string()))
}

/// Waits until the API server serves our kinds: established is not yet served, as its storage comes a moment later.
async fn served(hub: &Cluster) -> anyhow::Result<()> {
    let begin = std::time::Instant::now();
    for crd in runnel_api::crds() {
        let name = crd.metadata.name.unwrap_or_default();
        let path = format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}");
        loop {
            let found = hub.get::<CustomResourceDefinition>("read the CRDs", &path);
            match found.await? {
                Some(found) if is_established(&found) => break,
                None => {
                    return Err(anyhow!(
                        "the CRD {name} is not there: was crds.install set to false? Install it first"
                    ));
                }
                Some(found) if begin.elapsed() > SERVED => {
                    let why = crd_message(&found, "NamesAccepted").to_owned();
                    return Err(ended(
                        TIMED_OUT,
                        format!("the API server does not serve {name}: {why}"),
                    ));
                }
                Some(_) => tokio::time::sleep(POLL_INTERVAL).await,
            }
        }
    }
    loop {
        let rules = read_cluster::rules::<Rule>(hub, None).await;
        let members = read_cluster::members::<MemberCluster>(hub).await;
        match (rules.map(drop), members.map(drop)) {
            (Ok(()), Ok(())) => return Ok(()),
            // A user who may only install needs no permission to read them.
            (Err(error), _) | (_, Err(error))
                if begin.elapsed() > SERVED || error.to_string().contains("forbidden") =>
            {
                note(&format!("warning: {error:#}"));
                return Ok(());
            }
            _ => tokio::time::sleep(POLL_INTERVAL).await,
        }
    }
}
