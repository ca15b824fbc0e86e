//! The rules that kube-proxy writes for a population in iptables mode: those of the port `http` of each Service.

use std::fmt::Write as _;

use super::{Fields, Population};

/// Where the rules of a table end in a dump.
const COMMIT: &str = "COMMIT";
const POD_PORT: u16 = 8080;

impl Population {
    /// Adds the population's rules to a dump of `iptables-save` that has kube-proxy's.
    ///
    /// # Errors
    ///
    /// If the dump has no table `nat`.
    pub fn add_rules(&self, dump: &str) -> Result<String, String> {
        let begin = dump.find("*nat\n").ok_or("the dump has no table nat")?;
        let rest = dump.get(begin..).unwrap_or_default();
        let end = begin + rest.find(COMMIT).ok_or("the table nat has no end")?;
        let (head, tail) = dump.split_at(end);
        let mut text = head.to_owned();
        for service in 0..self.services {
            self.service_rules(service, &mut text);
        }
        Ok(text + tail)
    }

    /// A chain may be declared after the rules of others.
    fn service_rules(&self, service: u32, text: &mut String) {
        let Fields { namespace, service: name, ip, .. } = super::Writer::of_service(service);
        let (comment, chain) =
            (format!("{namespace}/{name}:http"), format!("KUBE-SVC-{}", hash(service, 'A')));
        let matched =
            format!("-d {ip}/32 -p tcp -m comment --comment \"{comment} cluster IP\" -m tcp --dport 80");
        // Writing to a String cannot fail.
        let _ = writeln!(text, ":{chain} - [0:0]\n-A KUBE-SERVICES {matched} -j {chain}");
        let _ = writeln!(text, "-A {chain} ! -s 10.244.0.0/16 {matched} -j KUBE-MARK-MASQ");
        for member in 0..self.endpoints {
            let pod = service * self.endpoints + member;
            let (ip, own) = (super::pod_address(pod), format!("KUBE-SEP-{}", hash(pod, 'E')));
            let chance = match self.endpoints - member {
                1 => String::new(),
                left => format!("-m statistic --mode random --probability {:.11} ", 1.0 / f64::from(left)),
            };
            let _ = writeln!(
                text,
                ":{own} - [0:0]\n\
                 -A {chain} -m comment --comment \"{comment} -> {ip}:{POD_PORT}\" {chance}-j {own}\n\
                 -A {own} -s {ip}/32 -m comment --comment \"{comment}\" -j KUBE-MARK-MASQ\n\
                 -A {own} -p tcp -m comment --comment \"{comment}\" -m tcp -j DNAT --to-destination {ip}:{POD_PORT}"
            );
        }
    }
}

/// 16 letters, as many as kube-proxy's hashes have.
fn hash(index: u32, kind: char) -> String {
    let digits = (0..15).map(|place| {
        let digit = u64::from(super::scattered(index)) << 32 | u64::from(index);
        b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"[(digit >> (place * 4) & 15) as usize] as char
    });
    std::iter::once(kind).chain(digits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rules_lie_in_the_table_of_the_dump() {
        let population = Population { services: 2, endpoints: 3, node: "worker-1".to_owned() };
        let dump = "*filter\nCOMMIT\n*nat\n:KUBE-SERVICES - [0:0]\nCOMMIT\n# Completed\n";
        let text = population.add_rules(dump).unwrap();
        assert!(text.starts_with("*filter\nCOMMIT\n*nat\n") && text.ends_with("COMMIT\n# Completed\n"));
        // Two rules and the declaration of each Service; three of each endpoint, with its declaration.
        assert_eq!(text.lines().count(), dump.lines().count() + 2 * (3 + 3 * 4));
        let chains: std::collections::BTreeSet<&str> =
            text.lines().filter(|line| line.starts_with(":KUBE-S")).collect();
        assert_eq!(chains.len(), 1 + 2 + 6, "{chains:?}");
        assert!(population.add_rules("*filter\nCOMMIT\n").is_err());
    }
}
