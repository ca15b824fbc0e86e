//! C16: the conntrack table is full. New flows are dropped before any rule sees them; established ones continue.

use std::time::Duration;

use anyhow::{Result, bail};
use viptrace_class::Class;

use crate::{
    expect::Endpoint,
    traffic::{
        Outcome, all_ended,
        client::{self, Ending, Script},
        server::{self, EXCHANGE},
    },
    world::{CONNTRACK_MAX, Stage},
};

/// The established connections, and a smaller table: closed entries that time out free no room.
const STANDING: usize = 12;
const TABLE: &str = "8";

pub(super) fn story(stage: &mut Stage) -> Result<()> {
    let keeps = server::Script::Chat { request: client::REQUEST, response: client::RESPONSE };
    let serving = stage.serve("shop/frontend-1", 8080, keeps)?;
    let _idle = stage.serve("shop/cart-1", 8080, EXCHANGE)?;
    stage.watch()?;
    let from = stage.place("shop/client-1")?;
    let frontend = stage.vip("shop/frontend", "http")?;
    let mut standing = Vec::new();
    for _ in 0..STANDING {
        standing.push(client::hold(from, frontend, Script::exchange())?);
    }

    let max = "net.netfilter.nf_conntrack_max";
    stage.break_with(
        |world| world.topology.host.sysctl(max, TABLE),
        |world| world.topology.host.sysctl(max, CONNTRACK_MAX),
    )?;
    let cart = stage.vip("shop/cart", "http")?;
    let script = Script::exchange().connect_limit(Duration::from_secs(4));
    let refused_entry = client::connect(from, cart, 5, 5, script)?;
    all_ended(&refused_entry, &Outcome::ConnectTimedOut)?;
    stage.expect(&refused_entry, "shop/cart", Class::C16, &Endpoint::Null);

    let mut attempts = Vec::new();
    for mut held in standing {
        let outcome = held.exchange(&Script::exchange());
        if outcome != Outcome::Done {
            bail!("an established connection did not survive the full table: {outcome:?}");
        }
        attempts.push(held.end(Ending::Close, outcome));
    }
    stage.expect_by_server(&attempts, "shop/frontend", &[(&serving, Class::Ok)])
}
