// A certified OpenID Connect provider with people of the tests' own: `node provider.mjs PORT REDIRECT_URI PEOPLE`, where
// PEOPLE is JSON, {login: {name, groups}}. Its own development pages ask for a login and take any password.
import Provider from "oidc-provider";

const [port, redirectUri, people] = process.argv.slice(2);
const accounts = JSON.parse(people);
const provider = new Provider(`http://127.0.0.1:${port}`, {
  clients: [
    {
      client_id: "lethe",
      client_secret: "the secret of the coordinator: 100% & more",
      redirect_uris: [redirectUri],
      grant_types: ["authorization_code"],
      response_types: ["code"],
    },
  ],
  claims: { openid: ["sub"], profile: ["name", "groups"] },
  pkce: { required: () => true },
  cookies: { keys: ["only for tests"] },
  ttl: { AuthorizationCode: 60, AccessToken: 600, IdToken: 600, Interaction: 600, Session: 600, Grant: 600 },
  findAccount: async (_, id) => ({
    accountId: id,
    claims: async () => ({ sub: id, ...accounts[id] }),
  }),
});
process.stdin.resume().on("end", () => process.exit());
provider.listen(Number(port), "127.0.0.1", () => console.log("ready"));
