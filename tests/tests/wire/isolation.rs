//! A member gets only its own data, whatever it claims.

use anyhow::{Context, Result, ensure};
use runnel_proto::model::{
    AckedIntent, AgentFrame, Hello, HubFrame, Refusal, Revision, RuleState, RuleUid, SetDigest,
    SourceRef, TermsDigest,
};
use runnel_tests::simulated::{AgentStream, Credentials, Holdings, Record, SimulatedAgent};
use serde_json::json;

use super::stage::{Stage, shared};

const CANARY: &str = "the-canary-sings-4711";

/// Two members, a rule for each, and the other one's intents.
struct Scene {
    stage: Stage,
    mine: Credentials,
    my_rule: RuleUid,
    my_source: SourceRef,
    theirs: SimulatedAgent,
    their_rule: RuleUid,
    their_sources: Vec<SourceRef>,
}

async fn scene(namespace: &str) -> Result<Scene> {
    let stage = shared(namespace).await?;
    let (me, they) = (format!("{namespace}-mine"), format!("{namespace}-theirs"));
    let my_source = stage.write("own", "first").await?;
    let their_sources = vec![
        stage.write("foreign-settings", CANARY).await?,
        stage.write_secret("foreign-password", CANARY).await?,
    ];
    let my_rule = stage
        .rule("mine", &["own"], json!({"clusters": {"names": [me]}}))
        .await?;
    let spec = json!({"clusters": {"names": [they]}, "namespaces": {"names": ["foreign-target"]}});
    let their_rule = stage.rule("foreign-rule", &["foreign-*"], spec).await?;
    let (mine, theirs) = (stage.join(&me).await?, stage.join(&they).await?);
    let theirs = SimulatedAgent::up_to_date(&theirs, Holdings::default()).await?;
    theirs
        .until("its own sources", |state| {
            state.holdings.sources().count() == 2
        })
        .await?;
    ensure!(
        theirs.inspect(|state| state.record.contains(CANARY)),
        "the test would not notice"
    );
    stage.ready("foreign-rule", 1).await?;
    Ok(Scene {
        stage,
        mine,
        my_rule,
        my_source,
        theirs,
        their_rule,
        their_sources,
    })
}

impl Scene {
    /// A name for it that is right in every part.
    fn forged_state(
        &self,
        intents_digest: SetDigest,
        terms_digest: Option<TermsDigest>,
    ) -> RuleState {
        let true_state = self.theirs.inspect(|state| state.holdings.states());
        let known = true_state
            .into_iter()
            .find(|state| state.uid == self.their_rule);
        let base = known.unwrap_or_else(|| RuleState {
            intents: 2,
            ..RuleState::new(self.their_rule.clone())
        });
        RuleState {
            intents_digest,
            terms_digest,
            ..base
        }
    }

    fn their_pairs(&self) -> Vec<AckedIntent> {
        self.theirs
            .inspect(|state| state.holdings.detail(&self.their_rule))
    }

    /// Frames about another member's data.
    fn lies(&self) -> Vec<AgentFrame> {
        let uid = || self.their_rule.clone();
        let (pairs, sources) = (self.their_pairs(), self.their_sources.clone());
        let wrong = pairs
            .iter()
            .map(|pair| AckedIntent {
                revision: Revision([7; 16]),
                ..pair.clone()
            })
            .collect();
        let refusal = |pair: &AckedIntent| Refusal {
            rule: uid(),
            source: pair.source.clone(),
            revision: pair.revision,
            reason: runnel_proto::model::Reason::WaitingForHub,
            message: "send it again".to_owned(),
        };
        let refusals = pairs.iter().map(refusal).collect();
        let gone = RuleState {
            gone: true,
            ..self.forged_state(SetDigest::default(), None)
        };
        vec![
            AgentFrame::ContentRequest(uid(), sources.clone()),
            AgentFrame::ContentRequest(self.my_rule.clone(), sources.clone()),
            AgentFrame::Detail(uid(), Vec::new(), true),
            AgentFrame::Detail(uid(), wrong, true),
            AgentFrame::Detail(self.my_rule.clone(), pairs, true),
            AgentFrame::Report(vec![self.forged_state(SetDigest::default(), None)]),
            AgentFrame::ContentRequest(uid(), sources),
            AgentFrame::Ack(1, refusals),
            AgentFrame::Report(vec![gone]),
            AgentFrame::Detail(uid(), Vec::new(), true),
        ]
    }

    /// A new stream with this report, on which every false claim is made.
    async fn lie(&self, copies_there: Vec<RuleState>, round: usize) -> Result<Record> {
        let mut line = AgentStream::open(&self.mine).await?;
        line.send(&AgentFrame::Hello(Hello {
            protocol_min: 1,
            protocol_max: 1,
            agent_version: "foreign".to_owned(),
            kubernetes_version: format!("{}-theirs", self.stage.namespace),
            boot_id: format!("boot of {}-theirs", self.stage.namespace),
            cluster_uid: format!("uid-of-{}", self.mine.cluster),
        }));
        line.send(&AgentFrame::AckedRules(copies_there, true));
        line.must().await?;
        for lie in self.lies() {
            line.send(&lie);
        }
        // Frames are answered in order: the answer to a forged frame precedes this one.
        let marker = format!("marker {round}");
        self.stage.write("own", &marker).await?;
        while !line.record().contains(&marker) {
            if let HubFrame::Batch(batch) = line.must().await? {
                line.send(&AgentFrame::Ack(batch.nonce, Vec::new()));
            }
        }
        Ok(line.record().clone())
    }
}

#[tokio::test]
async fn member_gets_no_byte_of_anothers_intents() -> Result<()> {
    let scene = scene("isolation").await?;
    let pairs = scene.their_pairs();
    ensure!(pairs.len() == 2, "the other member holds {}", pairs.len());
    let digest: SetDigest = pairs
        .iter()
        .map(|pair| (&pair.source, &pair.revision))
        .collect();
    let terms = scene.theirs.inspect(|state| {
        let rule = state.holdings.rule(&scene.their_rule)?;
        rule.terms.as_ref().map(|(_, digest)| *digest)
    });
    let accounts = [
        Vec::new(),
        vec![scene.forged_state(digest, terms)],
        vec![scene.forged_state(SetDigest::default(), None)],
        vec![scene.forged_state(digest, None)],
        vec![scene.forged_state(SetDigest::default(), terms)],
        vec![RuleState {
            gone: true,
            ..scene.forged_state(digest, terms)
        }],
    ];
    let before = scene.theirs.take_record();
    ensure!(before.removals().is_empty());
    for (round, account) in accounts.into_iter().enumerate() {
        let record = scene.lie(account, round).await?;
        for foreign in [CANARY, "foreign", "foreign-rule", "foreign-target"] {
            ensure!(
                !record.contains(foreign),
                "{foreign} in round {round}: {}",
                record.sketch()
            );
        }
        ensure!(
            record
                .upserts()
                .iter()
                .all(|(uid, source)| *uid == scene.my_rule && *source == scene.my_source)
        );
        ensure!(record.complaints.is_empty(), "{:?}", record.complaints);
    }
    // The other one has not noticed anything, and neither has its rule.
    let after = scene.theirs.state();
    ensure!(after.record.frames.is_empty(), "{}", after.record.sketch());
    ensure!(after.holdings.sources().count() == 2);
    let rule = scene.stage.ready("foreign-rule", 1).await?;
    ensure!(
        rule.status
            .and_then(|status| status.summary)
            .is_some_and(|summary| summary.copies_applied == 2)
    );
    let member = scene.stage.members().get("isolation-theirs").await?;
    let status = member.status.context("a status")?;
    ensure!(
        status.cluster_uid.as_deref() == Some("uid-of-isolation-theirs"),
        "{:?}",
        status.cluster_uid
    );
    ensure!(
        status.agent_version.as_deref() == Some("simulated"),
        "{:?}",
        status.agent_version
    );
    Ok(())
}
