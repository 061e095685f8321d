//! Certificates and CAs change while edits stream, in compressed time: no edit is lost, none is applied twice, and
//! no member is without a stream for longer than a reconnect takes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair};
use runnel_hub::ca::{CA_BUNDLE_SECRET, IDENTITY_SECRET};
use runnel_tests::audit::Mark;
use runnel_tests::fleet::{Fleet, FleetOptions, NAMESPACE};
use runnel_tests::scene::{Draft, Id, Metrics, Recorder, RuleDraft, Scene};
use runnel_tests::wait::eventually;
use runnel_transport::identity::{Ca, Fingerprint};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::{Value, json};

const SOURCE: &str = "rotations";
const TARGET: &str = "rotations-target";
const OBJECTS: usize = 5;
/// Ten edits a second.
const PACE: Duration = Duration::from_millis(100);
const ROTATIONS: usize = 100;
/// Time for one read of the Secrets by the hub, and a renewal or two.
const SOON: Duration = Duration::from_secs(60);
/// A reconnect: the longest that an agent waits between two tries. Streams overlap, so that nobody is without one; but where the
/// machine is so busy that a certificate of four seconds ends before the next one has come, the member has to connect again.
const RECONNECT: Duration = Duration::from_secs(10);

fn options(members: usize, life: &str) -> FleetOptions {
    let hub_values = json!({
        "certificate": {"life": life},
        "lease": {"duration": "4s", "renewDeadline": "3s", "retryPeriod": "1s"},
    });
    FleetOptions {
        members,
        hub_values,
        ..FleetOptions::default()
    }
}

/// The pair of a CA, PEM.
struct Pair {
    certificate: String,
    key: String,
}

impl Pair {
    /// As a hub makes it, with the same name as any other of that hub.
    fn of(ca: &Ca) -> Self {
        Self {
            certificate: ca.certificate_pem().to_owned(),
            key: ca.key_pem(),
        }
    }

    /// As another program makes it.
    fn foreign() -> Result<Self> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params
            .distinguished_name
            .push(DnType::CommonName, "platform CA");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Ok(Self {
            certificate: params.self_signed(&key)?.pem(),
            key: key.serialize_pem(),
        })
    }

    fn print(&self) -> Result<String> {
        let der = CertificateDer::from_pem_slice(self.certificate.as_bytes())?;
        Ok(Fingerprint::of_ca(&der).to_string())
    }
}

/// The hub's Secrets and members, as its administrator sees them.
struct Hub<'a> {
    fleet: &'a Fleet,
    scene: &'a Scene,
}

impl Hub<'_> {
    async fn pair(&self) -> Result<Pair> {
        let secret = self
            .scene
            .hub
            .get(&Id::secret(NAMESPACE, IDENTITY_SECRET))
            .await?;
        let entry = |name: &str| {
            let encoded = secret["data"][name].as_str().unwrap_or_default();
            anyhow::Ok(String::from_utf8(
                data_encoding::BASE64.decode(encoded.as_bytes())?,
            )?)
        };
        Ok(Pair {
            certificate: entry("tls.crt")?,
            key: entry("tls.key")?,
        })
    }

    async fn replace(&self, pair: &Pair) -> Result<()> {
        let data = json!({"stringData": {"tls.crt": pair.certificate, "tls.key": pair.key}});
        self.scene
            .hub
            .change(&Id::secret(NAMESPACE, IDENTITY_SECRET), data)
            .await
            .map(drop)
    }

    /// Waits until every member has a certificate of this CA and of no other.
    async fn followed(&self, ca: &str) -> Result<()> {
        eventually("every member to follow the CA", SOON, async || {
            for number in 1..=self.fleet.size() {
                let record = Id::member_record(self.fleet.member_name(number));
                let record = self.scene.hub.get(&record).await?;
                let keys = record["spec"]["identity"]["keys"]
                    .as_array()
                    .cloned()
                    .unwrap_or_default();
                let newest = keys
                    .iter()
                    .max_by_key(|key| key["issuedAt"].as_str().unwrap_or_default().to_owned());
                let signed = newest
                    .and_then(|key| key["ca"].as_str())
                    .unwrap_or_default();
                ensure!(
                    signed == ca,
                    "{} has {signed}",
                    self.fleet.member_name(number)
                );
            }
            Ok(Some(()))
        })
        .await
    }

    /// Waits until only the CA that signs is left.
    async fn retired(&self) -> Result<()> {
        eventually("the former CAs to be gone", SOON, async || {
            let count = self.known().await?;
            ensure!(count == 1, "{count} are kept");
            let shown = Metrics::of(&self.fleet.hub_ops_url())
                .await?
                .sum("runnel_hub_trusted_cas")?;
            ensure!(shown == 1.0, "the metric says {shown}");
            Ok(Some(()))
        })
        .await
    }

    async fn known(&self) -> Result<usize> {
        let secret = self
            .scene
            .hub
            .get(&Id::secret(NAMESPACE, CA_BUNDLE_SECRET))
            .await?;
        let encoded = secret["data"]["ca-bundle.json"]
            .as_str()
            .unwrap_or_default();
        let written: Value =
            serde_json::from_slice(&data_encoding::BASE64.decode(encoded.as_bytes())?)?;
        Ok(written["cas"].as_array().map_or(0, Vec::len))
    }
}

/// The occurrences of a message in a log, each with its time and its other fields.
fn lines(log: &std::path::Path, message: &str) -> Result<Vec<Value>> {
    let text = std::fs::read_to_string(log)?;
    let read = text
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    Ok(read.filter(|line| line["message"] == message).collect())
}

fn renewals(fleet: &Fleet) -> Result<usize> {
    Ok(lines(fleet.hub_log(), "a cluster renewed its certificate")?.len())
}

/// The longest time that a member had no session at the hub.
fn longest_gap(fleet: &Fleet) -> Result<Duration> {
    let mut observed: Vec<(jiff::Timestamp, String, bool)> = Vec::new();
    for (message, begins) in [("agent connected", true), ("session ended", false)] {
        for line in lines(fleet.hub_log(), message)? {
            let at = line["timestamp"]
                .as_str()
                .context("a line without a time")?
                .parse()?;
            observed.push((
                at,
                line["span"]["cluster"]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned(),
                begins,
            ));
        }
    }
    observed.sort();
    let (mut ended, mut longest) = (BTreeMap::new(), Duration::ZERO);
    for (at, cluster, begins) in observed {
        match (begins, ended.remove(&cluster)) {
            (true, Some(since)) => longest = longest.max(at.duration_since(since).try_into()?),
            (true, None) => {}
            (false, _) => drop(ended.insert(cluster, at)),
        }
    }
    ensure!(ended.is_empty(), "without a stream at the end: {ended:?}");
    Ok(longest)
}

fn object(number: usize) -> String {
    format!("settings-{number}")
}

/// Edits one object after the other, and counts.
async fn edit(scene: &Scene, edits: &mut usize) -> Result<()> {
    *edits += 1;
    let id = Id::config_map(SOURCE, &object(*edits % OBJECTS));
    scene
        .hub
        .change(&id, json!({"data": {"edit": edits.to_string()}}))
        .await
        .map(drop)
}

/// Every copy has its last edit, never an older one, and was written once for each content.
async fn judge(
    fleet: &Fleet,
    scene: &Scene,
    rule: &Id,
    (recorders, marks): (&[Recorder], &[Mark]),
) -> Result<usize> {
    let mut seen = 0;
    for number in 0..OBJECTS {
        let source = scene
            .hub
            .get(&Id::config_map(SOURCE, &object(number)))
            .await?;
        scene.arrives(&source, rule, &[TARGET]).await?;
        for (index, recorder) in recorders.iter().enumerate() {
            let member = fleet.member_name(index + 1);
            let last = source["data"]["edit"]
                .as_str()
                .context("no edit")?
                .to_owned();
            let contents = eventually("the record of the last edit", SOON, async || {
                let records = recorder.about(TARGET, &object(number))?;
                let edits = records.iter().map(|record| {
                    record.object["data"]["edit"]
                        .as_str()
                        .unwrap_or_default()
                        .to_owned()
                });
                let edits: Vec<String> = edits.collect();
                Ok(edits
                    .last()
                    .is_some_and(|edit| *edit == last)
                    .then_some(edits))
            })
            .await?;
            let counted: Vec<usize> = contents
                .iter()
                .map(|edit| edit.parse().unwrap_or_default())
                .collect();
            ensure!(
                counted.is_sorted_by(|one, next| one < next),
                "{member} {}: {counted:?}",
                object(number)
            );
            let writes = fleet.member(index + 1).writes_since(marks[index])?;
            let own = writes.iter().filter(|write| {
                let ours =
                    write.user_agent.starts_with("runnel-agent/") && write.namespace == TARGET;
                ours && write.name == object(number)
            });
            let written = own.count();
            ensure!(
                written == contents.len(),
                "{member}: {written} writes for {} contents",
                contents.len()
            );
            seen += contents.len();
        }
    }
    Ok(seen)
}

#[tokio::test]
async fn certificates_and_cas_rotate_under_edits_without_loss() -> Result<()> {
    let fleet = Fleet::start(options(2, "4s")).await?;
    let scene = Scene::of(&fleet).await?;
    let hub = Hub {
        fleet: &fleet,
        scene: &scene,
    };
    scene.hub_namespaces(&[SOURCE]).await?;
    scene.member_namespaces(&[TARGET]).await?;
    for number in 0..OBJECTS {
        scene
            .hub
            .make(
                &Draft::config_map(SOURCE, &object(number))
                    .data("edit", "0")
                    .json(),
            )
            .await?;
    }
    let draft = RuleDraft::new(SOURCE, "all")
        .named(&["settings-*"])
        .everywhere()
        .into(&[TARGET]);
    let rule = Id::of(&scene.hub.make(&draft.json()).await?)?;
    scene.hub.all_applied(&rule, OBJECTS * 2).await?;

    let copies = Id::config_map(TARGET, "any");
    let recorders = try_join_all(
        scene
            .members
            .iter()
            .map(|member| Recorder::start(member, &copies)),
    )
    .await?;
    let marks: Vec<_> = (1..=2).map(|number| fleet.member(number).mark()).collect();
    let (before, began, mut edits) = (renewals(&fleet)?, Instant::now(), 0);
    {
        let mut changes = std::pin::pin!(change_cas(&hub, before));
        let mut pace = tokio::time::interval(PACE);
        loop {
            tokio::select! {
                done = &mut changes => break done?,
                _ = pace.tick() => edit(&scene, &mut edits).await?,
            }
        }
    }
    let took = began.elapsed();
    let seen = judge(&fleet, &scene, &rule, (&recorders, &marks)).await?;
    let (rotations, gap) = (renewals(&fleet)? - before, longest_gap(&fleet)?);
    println!(
        "{rotations} rotations, 5 CAs, {edits} edits in {took:.1?}; {seen} writes in 2 members, none twice; at \
         longest {gap:.3?} without a stream"
    );
    ensure!(rotations >= ROTATIONS, "only {rotations} rotations");
    ensure!(
        gap <= RECONNECT,
        "a member was without a stream for {gap:?}"
    );
    Ok(())
}

/// Five changes of the CA, in all the ways that there are; and then until there were enough rotations.
async fn change_cas(hub: &Hub<'_>, before: usize) -> Result<()> {
    let first = hub.pair().await?;
    let hub_id = hub
        .scene
        .hub
        .get(&Id::secret(NAMESPACE, IDENTITY_SECRET))
        .await?["data"]["hub-id"]
        .clone();
    let hub_id = data_encoding::BASE64.decode(hub_id.as_str().unwrap_or_default().as_bytes())?;
    let hub_id = String::from_utf8(hub_id)?;
    let made = || {
        anyhow::Ok(Pair::of(&Ca::generate(
            &hub_id,
            std::time::SystemTime::now(),
        )?))
    };

    // By a person, twice as fast as members follow; the name is the same, as any CA of this hub has it.
    let (second, third) = (made()?, made()?);
    hub.replace(&second).await?;
    hub.followed(&second.print()?).await?;
    hub.replace(&third).await?;
    hub.followed(&third.print()?).await?;

    // Damage is reported, and changes nothing.
    hub.replace(&Pair {
        certificate: third.certificate.clone(),
        key: second.key.clone(),
    })
    .await?;
    let unusable = "runnel_hub_identity_unusable";
    let wait_for_count = async |wanted: f64| {
        eventually("the hub to judge its identity", SOON, async || {
            let shown = Metrics::of(&hub.fleet.hub_ops_url()).await?.sum(unusable)?;
            Ok((shown == wanted).then_some(()))
        })
        .await
    };
    wait_for_count(1.0).await?;
    let observed = hub
        .scene
        .hub
        .has_event(&Id::secret(NAMESPACE, IDENTITY_SECRET), "IdentityUnusable")
        .await?;
    ensure!(
        observed.note.contains("does not belong to its certificate"),
        "{}",
        observed.note
    );

    // By the hub itself, because the pair was deleted.
    let gone = json!({"data": {"tls.crt": "", "tls.key": ""}});
    hub.scene
        .hub
        .change(&Id::secret(NAMESPACE, IDENTITY_SECRET), gone)
        .await?;
    wait_for_count(0.0).await?;
    let fourth = hub.pair().await?;
    ensure!(fourth.certificate != third.certificate);
    hub.followed(&fourth.print()?).await?;

    // By another program; and back to what it was in the beginning.
    let fifth = Pair::foreign()?;
    hub.replace(&fifth).await?;
    hub.followed(&fifth.print()?).await?;
    hub.replace(&first).await?;
    hub.followed(&first.print()?).await?;
    hub.retired().await?;
    eventually("the rotations", 3 * SOON, async || {
        let count = renewals(hub.fleet)? - before;
        ensure!(count >= ROTATIONS, "{count}");
        Ok(Some(()))
    })
    .await
}

/// The certificate of member 2 has ended when it comes back, the key of the CA that it trusts is gone, and the hub
/// was not there when that was replaced.
#[tokio::test]
async fn member_away_during_ca_change_returns_by_itself() -> Result<()> {
    let fleet = Fleet::start(options(2, "10s")).await?;
    let scene = Scene::of(&fleet).await?;
    let hub = Hub {
        fleet: &fleet,
        scene: &scene,
    };
    fleet.stop_agent(2).await?;
    fleet.kill_hub()?;
    let second = Pair::foreign()?;
    hub.replace(&second).await?;
    fleet.start_hub().await?;
    fleet.connected(1).await?;
    eventually("member 1 to follow", SOON, async || {
        let record = Id::member_record(fleet.member_name(1));
        Ok(scene.hub.get(&record).await?["spec"]["identity"]
            .to_string()
            .contains(&second.print()?)
            .then_some(()))
    })
    .await?;
    let third = Pair::foreign()?;
    hub.replace(&third).await?;
    eventually(
        "both former CAs to be kept for member 2",
        SOON,
        async || {
            let shown = Metrics::of(&fleet.hub_ops_url())
                .await?
                .sum("runnel_hub_trusted_cas")?;
            ensure!(shown >= 2.0, "{shown}");
            let record = Id::member_record(fleet.member_name(1));
            Ok(scene.hub.get(&record).await?["spec"]["identity"]
                .to_string()
                .contains(&third.print()?)
                .then_some(()))
        },
    )
    .await?;
    let away = scene.hub.get(&Id::member(fleet.member_name(2))).await?;
    let end = away["status"]["certificate"]["expiresAt"]
        .as_str()
        .context("no certificate")?
        .parse::<jiff::Timestamp>()?;
    eventually("the certificate of member 2 to end", SOON, async || {
        Ok((jiff::Timestamp::now() > end).then_some(()))
    })
    .await?;
    fleet.start_agent(2).await?;
    fleet.connected(2).await?;
    hub.followed(&third.print()?).await?;
    hub.retired().await?;

    // A delete of the Secret of the CAs drops the former ones at once, needed or not.
    fleet.stop_agent(2).await?;
    hub.replace(&Pair::foreign()?).await?;
    eventually("the former CA to be kept", SOON, async || {
        Ok((hub.known().await? == 2).then_some(()))
    })
    .await?;
    scene
        .hub
        .delete(&Id::secret(NAMESPACE, CA_BUNDLE_SECRET))
        .await?;
    eventually("the former CA to be dropped", SOON, async || {
        Ok((hub.known().await? == 1).then_some(()))
    })
    .await?;
    fleet.start_agent(2).await?;
    eventually(
        "member 2 to say that it does not trust this hub",
        SOON,
        async || {
            let text = std::fs::read_to_string(fleet.agent_log(2))?;
            Ok(text.contains("needs a new join string").then_some(()))
        },
    )
    .await?;
    fleet.connected(1).await?;
    let join_string = fleet
        .hub_release()
        .join_string(fleet.member_name(2), fleet.binaries(), &options(2, "10s"))
        .await?;
    fleet.agent(2).hand_over(&join_string).await?;
    fleet.agent(2).pod().refresh_mounts().await?;
    fleet.connected(2).await?;

    // Deleted and made again, it is another member: it needs another join string, and no restart.
    let id = Id::member(fleet.member_name(2));
    scene.hub.delete(&id).await?;
    scene.hub.lacks(&id).await?;
    let join_string = fleet
        .hub_release()
        .join_string(fleet.member_name(2), fleet.binaries(), &options(2, "10s"))
        .await?;
    fleet.agent(2).hand_over(&join_string).await?;
    fleet.agent(2).pod().refresh_mounts().await?;
    fleet.connected(2).await
}
