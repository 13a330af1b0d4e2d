window.ui = SwaggerUIBundle({
  url: "/v1/openapi.json",
  dom_id: "#docs",
  deepLinking: true,
  presets: [SwaggerUIBundle.presets.apis],
  layout: "BaseLayout",
  validatorUrl: null,
});
