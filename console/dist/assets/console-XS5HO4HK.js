import{E as i,H as a,J as o,L as t,M as n,b as e,fa as p,q as r}from"./chunk-GYBNYPYS.js";o();a();t();var d=document.getElementById("app");d&&e(n(p,{}),d);r().then(i);
