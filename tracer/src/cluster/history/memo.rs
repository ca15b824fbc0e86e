//! Answers about a Service port that many flows ask for, remembered until the history changes.
//!
//! Owns which questions have one answer: those about moments from the latest version of any object on, as long as no
//! object changes. Earlier moments are answered from the versions. The answers are those of the history, in a bounded memory.

use std::{
    fmt,
    hash::Hash,
    sync::{Arc, Mutex, PoisonError},
};

use foldhash::HashMap;

use super::{History, NoEndpointsReason, Standing, Usable, Vip};
use crate::{
    cluster::model::{Key, Via, is_same},
    net::{Protocol, TransportAddr},
    time::Timestamp,
};

/// The most addresses with a remembered answer of one kind; one more removes all others.
const MAX_ADDRESSES: usize = 4096;

/// The answers of one kind, by the address and what else is asked.
type Known<T, K = ()> = HashMap<(TransportAddr, Protocol, K), Answer<T>>;

#[derive(Debug, Default)]
pub(super) struct Memo(Mutex<Answers>);

#[derive(Debug, Default)]
pub(super) struct Answers {
    /// The history's when they were given.
    generation: u64,
    pub(super) usable: Known<Option<Usable>>,
    pub(super) reasons: Known<Option<Arc<NoEndpointsReason>>>,
    /// Of endpoints.
    pub(super) standings: Known<Standing, TransportAddr>,
}

/// An answer with the rest of its question.
#[derive(Debug)]
pub(super) struct Answer<T> {
    service: Key,
    via: Via,
    port: u16,
    port_name: Arc<str>,
    node: Option<Box<str>>,
    value: T,
}

impl<T> Answer<T> {
    fn is_about(&self, vip: &Vip<'_>, node: Option<&str>) -> bool {
        self.service == vip.service.key
            && self.via == vip.via
            && self.port == vip.port.port
            && is_same(&self.port_name, &vip.port.name)
            && self.node.as_deref() == node
    }
}

impl History {
    /// The answer to a question about `vip` and `about`, on `node`, at the moment `at`: the remembered one, or else that of
    /// `find`.
    pub(super) fn remembered<T: Clone + PartialEq + fmt::Debug, K: Copy + Eq + Hash>(
        &self,
        of: impl Fn(&mut Answers) -> &mut Known<T, K>,
        vip: &Vip<'_>,
        about: K,
        node: Option<&str>,
        at: Timestamp,
        find: impl Fn() -> T,
    ) -> T {
        if at < self.changes.latest() {
            return find();
        }
        let place = (vip.addr.into(), vip.port.protocol, about);
        let memo = || {
            let mut answers = self.memo.0.lock().unwrap_or_else(PoisonError::into_inner);
            if answers.generation != self.generation() {
                *answers = Answers { generation: self.generation(), ..Answers::default() };
            }
            answers
        };
        if let Some(known) = of(&mut memo()).get(&place).filter(|known| known.is_about(vip, node)) {
            let answer = known.value.clone();
            debug_assert_eq!(answer, find(), "a remembered answer about {vip} is not that of the history");
            return answer;
        }
        let answer = find();
        let mut answers = memo();
        let known = of(&mut answers);
        if known.len() >= MAX_ADDRESSES && !known.contains_key(&place) {
            known.clear();
        }
        let whole = Answer {
            service: vip.service.key.clone(),
            via: vip.via,
            port: vip.port.port,
            port_name: Arc::clone(&vip.port.name),
            node: node.map(Box::from),
            value: answer.clone(),
        };
        known.insert(place, whole);
        answer
    }
}
